"""Traces over OTLP: a span for each choice of each call, created when it ends and sent from a thread.

opentelemetry is imported only when a ``Tracing`` is created.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from infeng_core.api import AdapterChange, AdapterInfo, Engine, UsageError, __version__, get_logger
from infeng_core.api.engines import Observer
from infeng_serve.observers import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

MOST_LOADS = 1024
"""Number of recent adapter loads that are kept for the requests that waited for them."""

FAREWELL_SECONDS = 3.0
"""Time limit for sending the last spans."""

_log = get_logger(__name__)

_Part = tuple[str, float, float]  # name, begin, end in seconds of time.perf_counter

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Loads(Observer):
    """The recent adapter loads of an engine."""

    def __init__(self) -> None:
        """Start without loads."""
        self._latest: deque[_Part] = deque(maxlen=MOST_LOADS)  # named by adapter

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        """Record a load."""
        if change in ("loaded", "reloaded"):
            self._latest.append((info.name, info.loaded - (info.load_seconds or 0.0), info.loaded))

    def waited_for(self, record: Record) -> Iterator[_Part]:
        """Yield the adapter loads that a request waited for."""
        if not record.adapter or not record.started:
            return
        names = record.adapter.split("+")
        for name, begin, end in tuple(self._latest):
            if name in names and record.submitted < end <= record.started:
                yield f"adapter load {name}", max(record.submitted, begin), end


class Tracing:
    """An Observer that creates a span ``llm_request`` for each record, with child spans for its phases.

    Attributes have the names of vLLM and of the semantic conventions for generative AI. A caller's ``traceparent`` is
    the parent. The SDK's environment variables apply: ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_*``,
    ``OTEL_EXPORTER_OTLP_HEADERS`` and others.
    """

    def __init__(self, endpoint: str, engine: Engine | None = None) -> None:
        """endpoint: a collector, such as http://localhost:4317 (gRPC) or http://localhost:4318/v1/traces (HTTP).

        engine: reports adapter loads. Raises UsageError if opentelemetry is not installed or the endpoint is invalid.
        """
        exporter = exporter_for(endpoint)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        service = os.environ.get("OTEL_SERVICE_NAME", "infeng")
        resource = Resource.create({"service.name": service, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("infeng_serve", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._loads = Loads()
        self._observing = contextlib.ExitStack()
        if engine is not None:
            self._observing.enter_context(engine.observe(self._loads))

    def accepted(self, record: Record) -> None:
        """Make no span yet."""

    def tokens(self, record: Record, new: int, now: float) -> None:
        """Make no span yet."""

    def ended(self, record: Record) -> None:
        """Create the span of a request and its child spans."""
        self._make(record, record.error if record.finish_reason == "error" else "", _spans(record))

    def rejected(self, record: Record, reason: str) -> None:
        """Create the span of a rejected call."""
        self._make(record, reason, ())

    def close(self) -> None:
        """Send the remaining spans and stop; spans that are not sent in a few seconds are lost."""
        self._observing.close()
        thread = threading.Thread(target=self._provider.shutdown, name="infeng-spans", daemon=True)
        thread.start()
        thread.join(FAREWELL_SECONDS)

    def _make(self, record: Record, error: str, parts: Iterable[_Part]) -> None:
        try:
            self._emit(record, error, (*parts, *self._loads.waited_for(record)))
        except Exception as problem:  # tracing must not affect answers
            _log.warning("a span cannot be created", error=f"{type(problem).__name__}: {problem}")

    def _emit(self, record: Record, error: str, parts: Iterable[_Part]) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        parent = self._propagator.extract({"traceparent": record.traceparent})
        span = self._tracer.start_span(
            "llm_request",
            parent,
            SpanKind.SERVER,
            attributes=attributes(record),
            start_time=_nanoseconds(record, record.arrived),
        )
        if error:
            span.set_status(StatusCode.ERROR, error)
        inside = set_span_in_context(span, parent)
        for name, begin, end in parts:
            start = _nanoseconds(record, begin)
            self._tracer.start_span(name, inside, start_time=start).end(max(start, _nanoseconds(record, end)))
        span.end(_nanoseconds(record, record.ended or record.arrived))


def check(endpoint: str) -> None:
    """Raise UsageError for an invalid endpoint, or if opentelemetry is not installed."""
    exporter_for(endpoint).shutdown()


def exporter_for(endpoint: str) -> SpanExporter:
    """Return an exporter: HTTP if path or port indicate it, else by the environment's protocol, else gRPC."""
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise UsageError(
            f"--otlp-endpoint {endpoint}", "it is not an http or https URL", "such as http://localhost:4317"
        )
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "grpc")
    by_http = protocol.startswith("http/") or url.path.endswith("/v1/traces") or url.port == 4318
    try:
        if not by_http:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

            return ByGrpc(endpoint=endpoint, insecure=url.scheme == "http")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as ByHttp

        whole = endpoint if url.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
        return ByHttp(endpoint=whole)
    except ImportError as error:
        raise UsageError(
            "--otlp-endpoint", f"{error.name} is not installed", "pip install 'infeng-serve[otlp]'"
        ) from None


def attributes(record: Record) -> Mapping[str, str | int | float | tuple[str, ...]]:
    """Return a span's attributes by vLLM's names, the conventions' names, and own names for the rest."""
    latencies = {
        "time_in_queue": (record.submitted, record.started),
        "time_to_first_token": (record.arrived, record.first_token),
        "e2e": (record.arrived, record.ended),
        "time_in_model_prefill": (record.started, record.first_token),
        "time_in_model_decode": (record.first_token, record.last_token),
        "time_in_model_inference": (record.started, record.last_token),
    }
    found: dict[str, str | int | float | tuple[str, ...]] = {
        "gen_ai.request.id": record.id,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.temperature": record.temperature,
        "gen_ai.request.top_p": record.top_p,
        "gen_ai.response.model": record.model,
        "gen_ai.usage.prompt_tokens": record.prompt_tokens,
        "gen_ai.usage.completion_tokens": record.completion_tokens,
        **{f"gen_ai.latency.{name}": end - begin for name, (begin, end) in latencies.items() if begin and end},
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "client.address": record.client,
        "infeng.tenant": record.tenant,
        "infeng.adapter": record.adapter,
        "infeng.cached_tokens": record.cached_tokens,
    }
    if record.finish_reason:
        found["gen_ai.response.finish_reasons"] = (record.finish_reason,)
    return {name: value for name, value in found.items() if value != ""}


def _spans(record: Record) -> Iterator[_Part]:
    """Yield (name, begin, end) of each phase of a request."""
    if record.submitted:
        yield "queue", record.submitted, record.started or record.ended
    if record.started:
        yield "prefill", record.started, record.first_token or record.ended
    if record.first_token:
        yield "decode", record.first_token, record.last_token or record.ended


def _nanoseconds(record: Record, moment: float) -> int:
    """Convert a time of ``time.perf_counter`` to Unix time in nanoseconds."""
    return int((record.wall + moment - record.arrived) * 1e9)
