"""The access log: one line for each request, that a machine can read and nobody can forge."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Callable

import pytest
from infeng_serve.observability import lines as lines_module
from infeng_serve.observability.accesslog import AccessLog
from infeng_serve.observability.lines import LineWriter
from infeng_serve.observers import Record

MakeRecord = Callable[..., Record]


def written(record: Record, **settings: object) -> list[str]:
    """Return the lines of a request that has ended."""
    stream = io.StringIO()
    log = AccessLog(stream, **settings)  # type: ignore[arg-type]
    log.accepted(record)
    log.tokens(record, 1, record.last_token)
    log.ended(record)
    log.close()
    return stream.getvalue().splitlines()


def test_a_line_of_json_says_who_asked_for_what_and_how_long_it_took(finished: MakeRecord):
    [line] = written(finished(wall=1.7e9 + 0.25, adapter="bard", client="10.0.0.7"), format="json")
    assert json.loads(line) == {
        "timestamp": "2023-11-14T22:13:20.250Z", "level": "info", "event": "request", "id": "r1", "client": "10.0.0.7",
        "route": "/v1/completions", "status": 200, "tenant": "acme", "model": "demo", "adapter": "bard",
        "finish_reason": "stop", "prompt_tokens": 40, "cached_tokens": 16, "completion_tokens": 5, "max_tokens": 64,
        "queue_ms": 400.0, "ttft_ms": 1500.0, "decode_ms": 800.0, "total_ms": 2500.0,
    }  # fmt: skip


def test_a_line_of_logfmt_says_the_same(finished: MakeRecord):
    [line] = written(finished(wall=1.7e9, model="the demo"))
    assert line.startswith("timestamp=2023-11-14T22:13:20.000Z level=info event=request id=r1 route=/v1/completions ")
    assert ' model="the demo" ' in line and line.endswith("total_ms=2500.0")


@pytest.mark.parametrize("format", ["logfmt", "json"])
def test_what_a_client_sends_cannot_end_a_line_or_move_a_cursor(finished: MakeRecord, format: str):
    nasty = 'x\nlevel=info event=request\r\x1b[2J\u2028"\u202e\ud800' + "y" * 5000
    found = written(finished(model=nasty, id=nasty, error=nasty, finish_reason="error"), format=format)
    assert len(found) == 1 and found[0].isprintable() and len(found[0]) < 1500
    found[0].encode("utf-8")
    assert "\\x1b" in found[0]


def test_a_rejected_call_has_a_line_with_its_reason(make_record: MakeRecord):
    stream = io.StringIO()
    log = AccessLog(stream, format="json", sample=0.0)
    log.rejected(make_record(status=429, error="3 requests wait already"), "overloaded")
    log.close()
    line = json.loads(stream.getvalue())
    assert (line["event"], line["reason"], line["status"]) == ("rejected", "overloaded", 429)
    assert "total_ms" not in line


def test_a_sample_has_its_share_of_complete_answers_and_all_failures(finished: MakeRecord):
    stream = io.StringIO()
    log = AccessLog(stream, format="json", sample=0.25)
    for number in range(1000):
        log.ended(finished(id=f"call-{number}"))
        if number % 10 == 0:
            log.ended(finished(id=f"bad-{number}", status=500, finish_reason="error"))
            log.ended(finished(id=f"gone-{number}", finish_reason="cancelled"))
    log.close()
    ids = [json.loads(line)["id"] for line in stream.getvalue().splitlines()]
    good = [one for one in ids if one.startswith("call")]
    assert 200 < len(good) < 300
    assert len(ids) - len(good) == 200


def test_a_blocked_reader_delays_no_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines_module, "MOST", 100)
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    writer, done = LineWriter(stream), threading.Event()

    def write() -> None:
        for _ in range(2000):
            writer.write("x" * 1000)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(5)
    assert writer.dropped > 1000
    os.close(reading)  # what waits to be written fails now
    writer.close()
    assert not writer._thread.is_alive()
    with contextlib.suppress(OSError):  # its buffer cannot be written
        stream.close()
