"""A server is warm before it is ready: adapters, prompts, the journal; it says where the time of its start went."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from infeng_serve.auth import Keys
from infeng_serve.journal import Journal
from infeng_serve.observability.scrape import read
from infeng_serve.request_observers import request_observers
from infeng_serve.warm import Warming
from serve_parts import Running, running, settings_of, slowed, until

from infeng_core.api import UsageError
from infeng_core.api.servers import StartupTimes

SYSTEM = "You are a patient librarian who answers every question with a short story about a book. " * 4
STORY = "Once upon a time there was a lion who lived in a deep forest and was afraid of mice. " * 4
LINES = [
    {"model": "bard", "tenant": "acme", "messages": [{"role": "system", "content": SYSTEM}]},
    {"prompt": STORY},
]
KEYS = "key-a acme\nkey-b beta bard\nkey-c acme coder\n"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with two tenants that has warmed its adapters, a system prompt of acme's, and a text of everybody's."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "keys").write_text(KEYS)
    (folder / "prompts").write_text("".join(f"{json.dumps(line)}\n\n" for line in LINES))
    given: dict[str, Any] = {"warm": ("adapters",), "warm_prompts": (str(folder / "prompts"),)}
    with running(
        keys=Keys(file=folder / "keys"), watch=lambda m: request_observers(m, settings_of()), **given
    ) as found:
        yield found


def cached(served: Running, path: str, key: str, body: dict[str, Any]) -> int:
    reply = served.ask(path, {**body, "max_tokens": 2}, authorization=f"Bearer {key}")
    assert reply.status == 200, reply.data
    return int(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def asked(question: str) -> dict[str, Any]:
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"model": "bard", "messages": turns}


def test_warmed_adapters_are_in_memory_before_the_first_call_and_may_be_evicted(warm: Running):
    infos = warm.engine.adapters.infos()
    assert [(info.state, info.pinned) for info in infos] == [("resident", False)] * 2


def test_a_warmed_prompt_is_cached_for_its_tenant_only(warm: Running):
    assert cached(warm, "/v1/chat/completions", "key-b", asked("Who wrote it?")) == 0
    assert cached(warm, "/v1/chat/completions", "key-a", asked("Who wrote it?")) > len(SYSTEM) // 16
    assert cached(warm, "/v1/chat/completions", "key-a", {**asked("Who?"), "model": None}) == 0  # of another adapter
    for key in ("key-a", "key-b"):  # a line without a tenant is for all of them
        assert cached(warm, "/v1/completions", key, {"prompt": STORY + "But"}) > len(STORY) // 16


def test_warming_does_not_change_answers(warm: Running):
    body = {**asked("Who wrote it?"), "max_tokens": 12, "temperature": 0.8, "seed": 5}
    bodies = (body, {**body, "cache_salt": "nothing was computed under this one"})
    first, second = (warm.ask("/v1/chat/completions", one, authorization="Bearer key-a").json for one in bodies)
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"] != second["usage"]["prompt_tokens_details"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("{}", "needs one of"),
        ('{"prompt": "a", "messages": []}', "has 2"),
        ('{"prompt": "a", "tenant": 3}', "tenant"),
    ],
)
def test_a_malformed_file_of_prompts_is_an_error_with_its_line_before_loading(tmp_path: Path, line: str, says: str):
    path = tmp_path / "prompts"
    path.write_text(f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(UsageError, match=says) as raised:
        Warming(settings_of(warm_prompts=(str(path),)), Keys())
    assert raised.value.what == f"{path}:2"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "a", "model": "nobody"}', "nobody"),
        ('{"prompt": "a", "tenant": "gamma"}', "gamma"),
        ('{"prompt": "a", "temperature": "hot"}', "temperature"),
    ],
)
def test_a_prompt_that_the_model_refuses_is_an_error_with_its_line(warm: Running, tmp_path: Path, line: str, says: str):
    path = tmp_path / "prompts"
    path.write_text(line)
    warming = Warming(settings_of(warm_prompts=(str(path),)), Keys(["a-key"]))
    with pytest.raises(UsageError, match=says) as raised:
        warming.run(warm.server.service.model)
    assert raised.value.what == f"{path}:1"


def test_things_that_cannot_be_warmed_and_files_that_are_not_there_are_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="known: adapters"):
        Warming(settings_of(warm=("engines",)), Keys())
    with pytest.raises(UsageError, match="no such file"):
        Warming(settings_of(warm_prompts=(str(tmp_path / "none"),)), Keys())


# -------------------------------------------------------------------------------------------------- the start ---


def test_the_phases_of_the_start_are_reported_and_add_up(warm: Running):
    reply = warm.ask("/version", authorization="Bearer key-a").json
    assert {"listen", "journal", "model", "begin"} <= reply["startup_ms"].keys()
    seconds = warm.server.service.startup.seconds
    assert reply["startup_ms"] == {phase: round(1000 * value, 1) for phase, value in seconds.items()}
    phases = warm.engine.startup
    names = ["plugins", "kernels", "convert", "weights", "program", "tokenizer", "requests", "adapters"]
    assert list(phases) == names and min(phases.values()) >= 0
    assert phases["kernels"] > 0 and phases["weights"] > 0


def test_while_the_journal_is_read_health_answers_and_calls_get_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go, reads = threading.Event(), Journal.read

    def late(self: Journal) -> int:
        assert go.wait(30)
        return reads(self)

    monkeypatch.setattr(Journal, "read", late)
    ready = tmp_path / "ready"
    ready.write_text("http://127.0.0.1:1")  # of a server that was killed
    with running(journal=str(tmp_path / "journal"), ready_file=str(ready), waits=False) as served:
        for path in ("/health", "/ready", "/v1/models", "/v1/streams/one"):
            reply = served.ask(path)
            assert (reply.status, reply.json["error"]["message"]) == (503, "Loading model")
        assert not ready.exists()
        go.set()
        assert until(ready.exists, 30)
        assert served.ask("/ready").status == 200
        assert ready.read_text() == f"{served.url}\n"
    assert not ready.exists()


# -------------------------------------------------------------------------------------------- tokens of prompts ---


@pytest.mark.slow
def test_a_prompt_is_counted_once_and_when_its_answer_begins_but_one_that_was_warmed_is_not(tmp_path: Path):
    path = tmp_path / "prompts"
    path.write_text('{"prompt": "Another text, which nobody has asked for."}')
    started = StartupTimes(1.5)
    started.record("imports")
    watch: Any = lambda model: request_observers(model, settings_of(), started)  # noqa: E731
    with running(watch=watch, warm_prompts=(str(path),)) as served:

        def counted(name: str, **labels: str) -> float:
            return read(served.ask("/metrics").data.decode(), 0.0).total(name, **labels)

        assert counted("tenant_requests_total") == counted("prompt_tokens_total") == 0
        assert counted("prefix_cache_queries_total") > 0
        assert counted("infeng_startup_seconds", phase="imports") == pytest.approx(1.5, abs=0.1)
        body = {"prompt": STORY, "max_tokens": 40, "ignore_eos": True}
        tokens = served.ask("/v1/completions", body).json["usage"]["prompt_tokens"]
        assert counted("prompt_tokens_total") == tokens and counted("prompt_tokens_cached_total") == 0
        with slowed(served.engine, 0.02):
            thread = threading.Thread(target=served.ask, args=("/v1/completions", body))
            thread.start()
            assert until(lambda: counted("prompt_tokens_total") == 2 * tokens)
            assert thread.is_alive() and counted("num_requests_running") == 1
            hits = counted("prompt_tokens_cached_total")
            assert 0 < hits < tokens
            thread.join()
        assert (counted("prompt_tokens_total"), counted("prompt_tokens_cached_total")) == (2 * tokens, hits)
        assert counted("tenant_prompt_tokens_total") == counted("request_prompt_tokens_sum") == 2 * tokens


# ------------------------------------------------------------------------------------------------------ restarts ---


def test_after_a_restart_the_first_call_uses_the_prefix_on_disk_and_gets_the_same_answer(tmp_path: Path):
    overrides = {"kv_cache.prefix_dir": str(tmp_path / "prefixes")}
    answers = []
    for _ in range(2):
        with running(overrides=overrides) as served:
            body = {"model": "bard", "prompt": STORY, "max_tokens": 16, "seed": 3, "temperature": 0.8}
            answers.append(served.ask("/v1/completions", body).json)
    first, second = ((one["choices"], one["usage"]["prompt_tokens_details"]["cached_tokens"]) for one in answers)
    assert first[0] == second[0]
    assert first[1] == 0 < len(STORY) // 16 < second[1]
