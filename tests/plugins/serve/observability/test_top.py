"""``infeng top``: scrapes become rates, percentiles and rows, on a screen or as JSON."""

from __future__ import annotations

import argparse
import http.server
import io
import json
import math
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from infeng_serve.observability.interval_statistics import figures
from infeng_serve.observability.metrics import Metrics
from infeng_serve.observability.scrape import quantile, read
from infeng_serve.observability.screen import screen
from infeng_serve.observability.top import Top
from infeng_serve.observers import Record
from rich.console import Console

from infeng_core.api import Engine, InfengError, UsageError

MakeRecord = Callable[..., Record]


@pytest.fixture
def metrics(engine: Engine) -> Metrics:
    return Metrics(engine, "demo")


def serve(metrics: Metrics, record: Record, tokens: int = 5) -> None:
    metrics.accepted(record)
    first, record.last_token = record.first_token, 0.0
    for number in range(tokens):
        now = first + 0.18 * number
        metrics.tokens(record, 1, now)
        record.last_token = now
    metrics.ended(record)


# ---------------------------------------------------------------------------------------------------- by itself ---


@pytest.mark.parametrize("openmetrics", [False, True])
def test_rendered_metrics_are_parsed_back(engine: Engine, finished: MakeRecord, openmetrics: bool):
    metrics = Metrics(engine, 'a "b"\\c\nd, e="f"', prefix="vllm" if openmetrics else "infeng")
    serve(metrics, finished())
    found = read(metrics.render(openmetrics).decode(), 0.0)
    assert found.names("num_requests_running", "model_name") == ['a "b"\\c\nd, e="f"']
    assert found.total("generation_tokens_total") == 5
    assert found.total("request_success_total", finished_reason="stop") == 1
    assert found.buckets("time_to_first_token_seconds")[math.inf] == 1


def test_lines_without_a_value_are_skipped():
    found = read('garbage {{{\n# HELP x y\nx{a="1"} nonsense\nx{a="2"} 3 1700000000\n\nx 1e3\n', 0.0)
    assert found.total("x") == 1003 and found.total("x", a="2") == 3


def test_percentiles_cover_the_values_since_the_last_scrape():
    before = {0.1: 100.0, 0.5: 100.0, 1.0: 100.0, math.inf: 100.0}
    now = {0.1: 100.0, 0.5: 110.0, 1.0: 120.0, math.inf: 120.0}
    assert quantile(0.5, now, before) == pytest.approx(0.5)
    assert quantile(0.25, now, before) == pytest.approx(0.3)
    assert quantile(0.99, now, before) == pytest.approx(0.99)
    assert quantile(0.5, now, now) is None and quantile(0.5, {}, {}) is None
    assert quantile(0.5, {0.1: 0.0, math.inf: 3.0}, {}) == 0.1  # beyond all bounds


def test_figures_are_rates_over_the_interval(metrics: Metrics, finished: MakeRecord):
    serve(metrics, finished(tenant="old"))
    before = read(metrics.render(False).decode(), 10.0)
    serve(metrics, finished(adapter="bard"))
    for _ in range(3):
        serve(metrics, finished(tenant="new"))
    metrics.rejected(finished(tenant="new"), "overloaded")
    metrics.accepted(finished(tenant="new"))
    found = figures(read(metrics.render(False).decode(), 12.0), before)
    assert (found.model, found.seconds, found.generation_tokens, found.prompt_tokens) == ("demo", 2.0, 10.0, 80.0)
    assert (found.requests, found.rejections) == (2.5, 0.5)
    assert found.ttft_ms["p50"] == pytest.approx(1750) and found.itl_ms["p50"] == pytest.approx(175, rel=0.2)
    tenants = {row.name: row for row in found.tenants}
    assert list(tenants) == ["new", "acme", "old"]
    assert (tenants["new"].generation_tokens, tenants["new"].in_flight, tenants["new"].rejections) == (7.5, 1, 0.5)
    assert (tenants["old"].requests, tenants["old"].ttft_ms) == (0.0, None)
    adapters = {row.name: row for row in found.adapters}
    assert (adapters["bard"].generation_tokens, adapters["bard"].loaded) == (2.5, False)
    assert adapters["base"].generation_tokens == 7.5 and adapters["base"].loaded is None


def test_a_restarted_server_has_no_negative_rates(metrics: Metrics, engine: Engine, finished: MakeRecord):
    for _ in range(4):
        serve(metrics, finished())
    before = read(metrics.render(False).decode(), 0.0)
    again = Metrics(engine, "demo")
    serve(again, finished())
    found = figures(read(again.render(False).decode(), 1.0), before)
    assert (found.generation_tokens, found.requests) == (5.0, 1.0)
    assert found.ttft_ms["p50"] is not None


def test_a_screen_shows_all_figures_and_escapes_control_characters(metrics: Metrics, finished: MakeRecord):
    before = read(metrics.render(False).decode(), 0.0)
    serve(metrics, finished(tenant="evil\x1b[2J[red]", adapter="bard"))
    found = figures(read(metrics.render(False).decode(), 1.0), before)
    stream = io.StringIO()
    Console(file=stream, width=110, force_terminal=False).print(screen(found, "note\x1b[2J"))
    text = stream.getvalue()
    assert "\x1b" not in text and "[red]" in text
    for word in ("tokens/s", "5.0", "first token", "bard", "evil", "prefix hits", "note"):
        assert word in text


# --------------------------------------------------------------------------------------------------- over HTTP ---


@pytest.fixture
def url(metrics: Metrics, finished: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of metrics, behind a key, in which something happens between two scrapes."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # as the standard library calls it
            if self.headers.get("Authorization") != "Bearer secret":
                self.send_error(401)
                return
            serve(metrics, finished())
            body = metrics.render(False) if self.path == "/metrics" else b"something else"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Top().configure(parser)
    return parser.parse_args(words)


def test_once_prints_one_line_of_json(url: str, capsys: pytest.CaptureFixture[str]):
    assert Top().run(arguments(url, "--api-key", "secret", "--once", "--json", "--interval", "0.1")) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["requests"] * found["seconds"] == pytest.approx(1)
    assert found["tenants"][0]["name"] == "acme" and found["ttft_ms"]["p50"] > 0


def test_once_prints_tables_for_people(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INFENG_API_KEY", "secret")
    assert Top().run(arguments(url, "--once", "--interval", "0.1")) == 0
    assert "between tokens" in capsys.readouterr().out


def test_in_a_pipe_no_line_is_cut_or_wrapped(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("INFENG_API_KEY", "secret")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Top().run(arguments(url, "--once", "--interval", "0.1")) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    [head] = [line for line in lines if line.lstrip().startswith("adapter")]
    assert len(head) > 80
    assert head.split()[-4:] == ["rank", "loaded", "load", "ms"]
    assert not any("\u2026" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "60")
    assert Top().run(arguments(url, "--once", "--interval", "0.1")) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_an_unusable_url_is_an_error_with_a_remedy(url: str):
    with pytest.raises(InfengError, match=r"answers 401.*--api-key"):
        Top().run(arguments(url, "--once"))
    with pytest.raises(InfengError, match=r"cannot be read.*does the server run there"):
        Top().run(arguments("http://127.0.0.1:1", "--once"))
    with pytest.raises(InfengError, match="not the metrics of infeng serve"):
        Top().run(arguments(f"{url}/else/metrics", "--api-key", "secret", "--once"))
    with pytest.raises(UsageError, match="neither http nor https"):
        Top().run(arguments("file:///etc/passwd", "--once"))
    with pytest.raises(UsageError, match="--interval 0"):
        Top().run(arguments(url, "--interval", "0"))


@pytest.mark.slow
def test_in_a_terminal_it_runs_until_q_and_restores_the_terminal(url: str):
    code = (
        "import argparse, sys; from infeng_serve.observability.top import Top; parser = argparse.ArgumentParser();"
        "Top().configure(parser); sys.exit(Top().run(parser.parse_args(sys.argv[1:])))"
    )
    master, slave = pty.openpty()
    command = [sys.executable, "-P", "-c", code, url, "--api-key", "secret", "--interval", "0.2"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "110", "LINES": "40"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        deadline = time.monotonic() + 30
        while seen.count(b"between tokens") < 3 and time.monotonic() < deadline:
            if select.select([master], [], [], 0.2)[0]:
                seen += os.read(master, 65536)
        os.write(master, b"q")
        while select.select([master], [], [], 0.5)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:
                break
        assert process.wait(10) == 0, seen[-2000:]
    os.close(master)
    assert seen.count(b"between tokens") >= 3
    assert b"\x1b[?1049h" in seen and seen.endswith(b"\x1b[?25h\x1b[?1049l")  # another screen, and back
