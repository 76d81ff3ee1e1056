"""Traces: what a collector receives over OTLP, by gRPC and by HTTP."""

from __future__ import annotations

import gzip
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from infeng_serve.observability import tracing as tracing_module
from infeng_serve.observability.tracing import Tracing, exporter_for
from infeng_serve.observers import Record
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from infeng_core.api import Engine, SamplingParams, UsageError

MakeRecord = Callable[..., Record]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Collector:
    """What arrived, in the messages of OTLP."""

    endpoint: str = ""
    received: list[Any] = field(default_factory=list)

    def spans(self) -> dict[str, Span]:
        """Return the spans by their names."""
        found = [s for r in self.received for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
        assert len({one.name for one in found}) == len(found)
        return {one.name: one for one in found}

    def resource(self) -> dict[str, str]:
        """Return what the sender says of itself."""
        return {one.key: one.value.string_value for one in self.received[0].resource_spans[0].resource.attributes}


def by_http() -> Iterator[Collector]:
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # as the standard library calls it
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            collector.received.append(messages.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(messages.ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    yield collector
    server.shutdown()
    server.server_close()


def by_grpc() -> Iterator[Collector]:
    collector = Collector()

    class Servicer(service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the protocol calls it
            collector.received.append(request)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(Servicer(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


@pytest.fixture(params=[by_grpc, by_http], ids=["grpc", "http"])
def collector(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield from request.param()


def attributes(span: Span) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {one.key: plain(one.value) for one in span.attributes}


def test_a_collector_gets_one_span_of_a_request_with_its_parts_below_it(collector: Collector, finished: MakeRecord):
    tracing = Tracing(collector.endpoint)
    tracing.ended(finished(wall=1.7e9, traceparent=PARENT, adapter="bard", top_p=0.9))
    tracing.close()
    spans = collector.spans()
    assert spans.keys() == {"llm_request", "queue", "prefill", "decode"}
    whole = spans["llm_request"]
    assert whole.trace_id.hex() == PARENT.split("-")[1] and whole.parent_span_id.hex() == PARENT.split("-")[2]
    assert whole.kind == Span.SPAN_KIND_SERVER and whole.status.code == Status.STATUS_CODE_UNSET
    begin = 1_700_000_000_000_000_000
    seconds = {
        name: tuple(round((at - begin) / 1e9, 3) for at in (span.start_time_unix_nano, span.end_time_unix_nano))
        for name, span in spans.items()
    }
    assert seconds == {
        "llm_request": (0, 2.5), "queue": (0.1, 0.5), "prefill": (0.5, 1.5), "decode": (1.5, 2.3),
    }  # fmt: skip
    for name in ("queue", "prefill", "decode"):
        assert (spans[name].trace_id, spans[name].parent_span_id) == (whole.trace_id, whole.span_id)
    said = attributes(whole)
    latencies = {name: said.pop(name) for name in list(said) if name.startswith("gen_ai.latency.")}
    assert latencies == pytest.approx(
        {
            "gen_ai.latency.time_in_queue": 0.4,
            "gen_ai.latency.time_to_first_token": 1.5,
            "gen_ai.latency.e2e": 2.5,
            "gen_ai.latency.time_in_model_prefill": 1.0,
            "gen_ai.latency.time_in_model_decode": 0.8,
            "gen_ai.latency.time_in_model_inference": 1.8,
        }
    )
    assert said == {
        "gen_ai.request.id": "r1", "gen_ai.request.max_tokens": 64, "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.9, "gen_ai.request.model": "demo", "gen_ai.response.model": "demo",
        "gen_ai.usage.prompt_tokens": 40, "gen_ai.usage.completion_tokens": 5, "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 5, "gen_ai.response.finish_reasons": ["stop"], "http.route": "/v1/completions",
        "http.response.status_code": 200, "infeng.tenant": "acme", "infeng.adapter": "bard", "infeng.cached_tokens": 16,
    }  # fmt: skip
    assert collector.resource()["service.name"] == "infeng"


@pytest.fixture
def http_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield from by_http()


def test_a_request_that_failed_or_was_refused_is_an_error(http_collector: Collector, finished: MakeRecord):
    tracing = Tracing(http_collector.endpoint)
    tracing.ended(finished(finish_reason="error", error="numbers are not finite", first_token=0.0, last_token=0.0))
    tracing.close()
    spans = http_collector.spans()
    assert spans.keys() == {"llm_request", "queue", "prefill"}  # which lasted until its end
    assert spans["llm_request"].status.code == Status.STATUS_CODE_ERROR
    assert spans["llm_request"].status.message == "numbers are not finite"
    assert spans["prefill"].end_time_unix_nano == spans["llm_request"].end_time_unix_nano
    http_collector.received.clear()
    tracing = Tracing(http_collector.endpoint)
    tracing.rejected(finished(started=0.0, first_token=0.0, last_token=0.0, ended=0.0, status=429), "overloaded")
    tracing.close()
    assert http_collector.spans()["llm_request"].status.message == "overloaded"


@pytest.mark.parametrize("parent", ["", "garbage", "00-00000000000000000000000000000000-b7ad6b7169203331-01"])
def test_without_a_usable_parent_a_trace_of_its_own_begins(
    http_collector: Collector, finished: MakeRecord, parent: str
):
    tracing = Tracing(http_collector.endpoint)
    tracing.ended(finished(traceparent=parent))
    tracing.close()
    assert http_collector.spans()["llm_request"].parent_span_id == b""


def test_a_callers_decision_not_to_sample_is_respected(http_collector: Collector, finished: MakeRecord):
    tracing = Tracing(http_collector.endpoint)
    tracing.ended(finished(traceparent=PARENT[:-1] + "0"))
    tracing.close()
    assert http_collector.received == []


def test_an_adapter_load_that_a_request_waited_for_is_a_child_span(
    engine: Engine, http_collector: Collector, make_record: MakeRecord
):
    tracing = Tracing(http_collector.endpoint, engine)
    now = time.perf_counter()
    record = make_record(arrived=now, submitted=now, adapter="coder+bard")
    params = SamplingParams(max_tokens=1)
    stream = engine.submit("the king", params, adapter=(("coder", 1.0), ("bard", 1.0)))
    stream.result()
    record.started = record.first_token = record.last_token = record.ended = time.perf_counter()
    record.finish_reason = "length"
    took = engine.adapters["coder"].load_seconds
    engine.adapters.reload("coder")  # which it has not waited for
    tracing.ended(record)
    tracing.close()
    load = http_collector.spans()["adapter load coder"]
    assert (load.end_time_unix_nano - load.start_time_unix_nano) / 1e9 == pytest.approx(took, rel=0.2, abs=1e-4)
    later = make_record(arrived=record.ended, submitted=record.ended, started=record.ended + 1, adapter="coder+nobody")
    http_collector.received.clear()
    tracing = Tracing(http_collector.endpoint, engine)
    tracing.ended(later)
    tracing.close()
    assert "adapter load coder" not in http_collector.spans()


def test_tracing_observes_the_engine_until_it_is_closed(engine: Engine, http_collector: Collector):
    tracing = Tracing(http_collector.endpoint, engine)
    assert tracing._loads in engine._observers.present
    tracing.close()
    assert tracing._loads not in engine._observers.present


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://127.0.0.1:1/v1/traces"])
def test_an_unreachable_collector_delays_no_call(finished: MakeRecord, monkeypatch: pytest.MonkeyPatch, endpoint: str):
    monkeypatch.setattr(tracing_module, "FAREWELL_SECONDS", 0.3)
    tracing = Tracing(endpoint)
    begin = time.perf_counter()
    for _ in range(200):
        tracing.ended(finished())
    tracing.close()
    assert time.perf_counter() - begin < 3


def test_an_invalid_record_does_not_affect_its_call(http_collector: Collector, finished: MakeRecord):
    tracing = Tracing(http_collector.endpoint)
    tracing.ended(finished(wall=float("nan")))
    tracing.close()


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://x", "http://", ""])
def test_an_invalid_endpoint_is_a_usage_error(endpoint: str):
    with pytest.raises(UsageError, match="--otlp-endpoint"):
        exporter_for(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "protocol", "kind"),
    [
        ("http://localhost:4317", "", "grpc"),
        ("http://localhost:4318", "", "http"),
        ("http://localhost:4317", "http/protobuf", "http"),
        ("https://collector/v1/traces", "", "http"),
    ],
)
def test_the_protocol_follows_from_endpoint_and_environment(
    endpoint: str, protocol: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    exporter = exporter_for(endpoint)
    assert kind in type(exporter).__module__.split(".")
    if kind == "http":
        assert exporter._endpoint.endswith("/v1/traces")  # type: ignore[attr-defined]
    exporter.shutdown()


def test_without_tracing_opentelemetry_is_not_imported():
    code = (
        "import sys, infeng_serve.observability.tracing as t; print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(UsageError, match=r"not installed.*infeng-serve\[otlp\]"):
        exporter_for("http://localhost:4317")
