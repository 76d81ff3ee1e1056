"""How a server goes: nothing new, what is in the making ends, and nobody waits for ever."""

from __future__ import annotations

import threading

import pytest
from infeng_serve.model import Model
from infeng_serve.settings import Settings
from serve_parts import connected, demo_model, posted, read_until, running, slowed, stepping, until

LONG = {"prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True, "stream": True}


def test_a_draining_server_ends_running_calls_and_refuses_new_ones():
    with running(drain_timeout=60.0) as served, stepping(served.engine, 0.0) as steps:
        client = connected(served.address)
        steps.allow(4)
        client.sendall(posted("/tiny", LONG))
        data = read_until(client, b'"text"')
        served.server.stop()
        assert until(lambda: served.ask("/ready").status == 503)
        assert served.ask("/health").status == 200
        refused = served.ask("/tiny", LONG)
        assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["connection"] == "close"
        steps.allow(float("inf"))
        data += read_until(client, b"[DONE]")
        assert data.count(b'"text"') >= 2
        assert b'"finish_reason":"length"' in data
        served.thread.join(30)
        assert not served.thread.is_alive()
        with pytest.raises(OSError):
            connected(served.address)


def test_a_stream_beyond_the_drain_timeout_ends_with_an_error_event():
    with running(drain_timeout=0.2) as served, slowed(served.engine, 0.03):
        streamed, whole = connected(served.address), connected(served.address)
        streamed.sendall(posted("/tiny", {**LONG, "max_tokens": 400}))
        whole.sendall(posted("/tiny", {**LONG, "max_tokens": 400, "stream": False}))
        data = read_until(streamed, b'"text"')
        served.server.stop()
        data += read_until(streamed, b"\r\n0\r\n\r\n")
        assert b"shutting_down" in data
        assert b"[DONE]" not in data
        answer = read_until(whole, b"}}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"shutting_down" in answer
        served.thread.join(10)
        assert not served.thread.is_alive()


def test_while_the_model_loads_health_says_so_and_routes_answer_503():
    go = threading.Event()

    def late(settings: Settings) -> Model:
        assert go.wait(30)
        return demo_model(settings)

    with running(model=late, waits=False) as served:
        for path in ("/health", "/ready", "/v1/models"):
            reply = served.ask(path)
            assert reply.status == 503
            assert reply.json == {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
        assert served.ask("/tiny", LONG).status == 503
        go.set()
        assert until(lambda: served.ask("/health").status == 200)
        assert served.ask("/tiny", {**LONG, "max_tokens": 2}).status == 200


def test_a_model_that_fails_to_load_ends_the_server_with_its_error():
    def broken(settings: Settings) -> Model:
        raise ZeroDivisionError("nothing there")

    with running(model=broken, waits=False) as served:
        served.thread.join(10)
        assert not served.thread.is_alive()
        assert [str(error) for error in served.failed] == ["nothing there"]


def test_an_engine_that_fails_in_a_step_ends_its_calls_and_serves_the_next():
    with running() as served:
        inner = served.engine.executable

        class Failing:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            def run(self, batch: object) -> object:
                raise RuntimeError("the step broke")

        served.engine.executable = Failing()  # type: ignore[assignment]
        reply = served.ask("/tiny", {**LONG, "stream": False})
        assert reply.status == 500
        served.engine.executable = inner
        assert served.ask("/tiny", {**LONG, "max_tokens": 2, "stream": False}).status == 200
