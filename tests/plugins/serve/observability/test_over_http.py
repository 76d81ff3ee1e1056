"""A server that is watched, over real HTTP: metrics, access log, load, the live view."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from infeng_demo import model_dir
from infeng_serve.model import Model
from infeng_serve.observability.accesslog import AccessLog
from infeng_serve.observability.families import OPENMETRICS, TEXT
from infeng_serve.observability.interval_statistics import figures
from infeng_serve.observability.scrape import read
from infeng_serve.observability.top import Top
from infeng_serve.observers import Observer
from infeng_serve.request_observers import request_observers
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from serve_parts import Running, running, settings_of, until

LOG = io.StringIO()


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    """A server with metrics and an access log of JSON in LOG, for whoever comes."""

    def watch(model: Model) -> Sequence[Observer]:
        return [*request_observers(model, settings_of()), AccessLog(LOG, format="json")]

    with running(watch=watch) as found:
        yield found


BODY = {"model": "bard", "prompt": "Once upon a time there was a lion", "max_tokens": 6, "temperature": 0}


def test_calls_appear_in_metrics_and_access_log(served: Running):
    before = read(served.ask("/metrics").data.decode(), 0.0)
    assert served.ask("/v1/completions", {**BODY, "ignore_eos": True}, X_Request_Id="abc").status == 200
    streamed = served.ask("/v1/completions", {**BODY, "n": 2, "stream": True, "ignore_eos": True})
    assert streamed.status == 200
    assert served.ask("/v1/completions", {**BODY, "model": "nobody"}).status == 404
    reply = served.ask("/metrics")
    assert (reply.status, reply.headers["content-type"]) == (200, TEXT)
    found = figures(read(reply.data.decode(), 1.0), before)
    assert (found.generation_tokens, found.requests, found.rejections) == (18.0, 3.0, 1.0)
    assert [row.generation_tokens for row in found.adapters if row.name == "bard"] == [18.0]
    assert found.ttft_ms["p50"] is not None and found.itl_ms["p99"] is not None
    now = read(reply.data.decode(), 1.0)
    for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
        assert now.total(f"{name}_seconds_count") == 3, name
    assert now.total("request_success_total", finished_reason="length") == 3
    assert now.total("prefix_cache_queries_total") >= now.total("prompt_tokens_total") > 0
    assert until(lambda: LOG.getvalue().count("\n") == 4, 5)
    log = [json.loads(line) for line in LOG.getvalue().splitlines()]
    first, *choices, refused = log
    assert (first["event"], first["id"], first["adapter"], first["completion_tokens"]) == ("request", "abc", "bard", 6)
    assert choices[1]["id"] == f"{choices[0]['id']}-1" and choices[0]["status"] == 200
    assert (refused["event"], refused["reason"], refused["status"]) == ("rejected", "not_found", 404)
    assert "lion" not in LOG.getvalue()


def test_openmetrics_is_served_on_request(served: Running):
    reply = served.ask("/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert reply.headers["content-type"] == OPENMETRICS
    assert len(list(read_openmetrics(reply.data.decode()))) > 40


def test_the_load_route_reports_the_servers_load(served: Running):
    assert served.ask("/load").json == dict.fromkeys(
        ("server_load", "running", "waiting", "kv_cache_usage", "predicted_wait_seconds"), 0
    )


def test_top_watches_it(served: Running, capsys: pytest.CaptureFixture[str]):
    parser = argparse.ArgumentParser()
    Top().configure(parser)
    assert Top().run(parser.parse_args([served.url, "--once", "--json", "--interval", "0.1"])) == 0
    assert json.loads(capsys.readouterr().out)["model"] == served.server.service.model.name


def test_the_settings_choose_the_observers(served: Running):
    def names(**given: object) -> list[str]:
        found = request_observers(served.server.service.model, settings_of(**given))
        for one in found:
            getattr(one, "close", lambda: None)()
        return [type(one).__name__ for one in found]

    assert names() == ["Metrics"]
    assert names(access_log="logfmt", otlp_endpoint="http://127.0.0.1:4318") == ["Metrics", "AccessLog", "Tracing"]


def test_an_invalid_endpoint_is_an_error_before_the_model_is_loaded():
    main = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", main, "serve", str(model_dir()), "--port", "0", "--otlp-endpoint", "nowhere"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "not an http or https URL" in done.stderr and "listening" not in done.stderr
