"""What was accepted is kept: streams go on where they broke, repeated calls get the same bytes, after a restart too."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir
from infeng_serve.auth import Keys
from infeng_serve.journal import Entry, Journal
from serve_parts import running, until
from stream_parts import DONE, STORY, frames, rest, texts

from infeng_core.api import UsageError


def entry(number: int, *, created: int = 1000, tenant: str = "t", body: bytes = b"{}") -> Entry:
    return Entry(f"id{number}", "/v1/completions", tenant, created, body, (number,), key=f"key{number}")


def journal(directory: Path | None, **given: Any) -> Journal:
    made = Journal(directory, clock=lambda: 1000.0, **given)
    made.read()
    return made


# ----------------------------------------------------------------------------------------------------- its files ---


def test_what_was_added_is_there_for_its_tenant_and_after_a_restart(tmp_path: Path):
    first = journal(tmp_path)
    first.add(entry(1))
    first.add(entry(2, tenant="other"))
    first.close()
    again = journal(tmp_path)
    for one in (first, again):
        assert one.find("t", "id1") == one.repeated("t", "key1") == entry(1)
        assert one.find("t", "id2") is one.repeated("t", "key2") is one.find("t", "id3") is None
    again.close()


def test_a_line_that_was_cut_off_or_damaged_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    first = journal(tmp_path)
    for number in range(4):
        first.add(entry(number))
    first.close()
    [path] = tmp_path.glob("*.journal")
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"id1"', b'"id7"')
    path.write_bytes(b"\n".join(lines[:-2]) + b"\n" + lines[3][:20])
    again = journal(tmp_path)
    assert [again.find("t", f"id{number}") is not None for number in (0, 1, 2, 3, 7)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    again.add(entry(9))  # into a file of its own, behind no torn line
    again.close()
    once_more = journal(tmp_path)
    assert once_more.find("t", "id9") == entry(9)
    once_more.close()


def test_what_is_too_old_or_too_much_goes(tmp_path: Path):
    small = journal(tmp_path, keep=100.0, most_bytes=20_000)
    small.add(entry(0, created=800))
    for number in range(1, 40):
        small.add(entry(number, body=b"x" * 1000))
    assert small.find("t", "id0") is small.find("t", "id1") is None
    assert small.find("t", "id39") is not None
    assert sum(path.stat().st_size for path in tmp_path.glob("*.journal")) <= 20_000
    small.close()


def test_a_directory_has_one_server(tmp_path: Path):
    first = journal(tmp_path)
    with pytest.raises(UsageError, match="another server writes it"):
        journal(tmp_path)
    first.close()
    journal(tmp_path).close()


# ------------------------------------------------------------------------------------------------------- streams ---


def test_a_stream_goes_on_behind_any_frame_also_in_another_server(tmp_path: Path):
    with running(journal=str(tmp_path)) as one:
        whole = httpx.post(f"{one.url}/v1/completions", json=STORY, timeout=60).content
        found = frames(whole)
        assert len(found) > 6 and all(id for id, frame in found if frame != DONE)
        for index in (0, 1, 4, len(found) - 2):
            again = frames(rest(one.url, found[index][0]).content)
            assert texts(again) == texts(found[index + 1 :])
            assert again[-1][1] == DONE
    with running(journal=str(tmp_path)) as other:
        assert texts(frames(rest(other.url, found[5][0]).content)) == texts(found[6:])


def test_streams_are_those_of_their_tenant_and_of_the_same_weights(tmp_path: Path):
    keys = Keys(["a-key-of-one", "a-key-of-two"])
    with running(keys=keys, journal=str(tmp_path)) as served:
        mine, other = ({"authorization": f"Bearer a-key-of-{name}"} for name in ("one", "two"))
        whole = httpx.post(f"{served.url}/v1/completions", json=STORY, headers=mine, timeout=60).content
        last = frames(whole)[3][0]
        assert rest(served.url, last, **mine).status_code == 200
        assert rest(served.url, last, **other).status_code == 404
        assert rest(served.url, last).status_code == 401
        assert rest(served.url, "nothing/1.1", **mine).status_code == 404
        assert rest(served.url, last + "9.9", **mine).status_code == 400
        served.engine.adapters.unload("bard")
        served.engine.adapters.load("bard", str(adapter_dir("python")))
        assert rest(served.url, last, **mine).status_code == 409


# --------------------------------------------------------------------------------------------- the same call again ---


def test_a_call_with_the_same_idempotency_key_gets_the_same_bytes():
    body = {"model": "bard", "prompt": "The king", "max_tokens": 12, "temperature": 1.0}
    with running() as served:

        def ask(given: dict[str, Any], key: str) -> httpx.Response:
            return httpx.post(f"{served.url}/v1/completions", json=given, headers={"idempotency-key": key}, timeout=60)

        first = ask(body, "order-1")
        assert ask(body, "order-1").content == first.content
        assert ask(body, "order-2").content != first.content
        refused = ask({**body, "max_tokens": 13}, "order-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert ask(body, "k" * 300).status_code == 400


def test_of_two_calls_with_one_key_at_a_time_one_has_to_wait():
    body = {"prompt": "The king", "max_tokens": 8, "ignore_eos": True}
    with running() as served:
        answers: list[int] = []
        go, inner = threading.Event(), served.engine.executable.run

        def run(batch: Any) -> Any:
            assert go.wait(30)
            return inner(batch)

        served.engine.executable.run = run  # type: ignore[method-assign]

        def ask() -> None:
            with httpx.Client(timeout=60) as client:
                head = {"idempotency-key": "same"}
                answers.append(client.post(f"{served.url}/v1/completions", json=body, headers=head).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert until(lambda: len(answers) == 2)
        go.set()
        for thread in threads:
            thread.join()
        assert answers == [409, 409, 200]
        ask()
        assert answers[-1] == 200
