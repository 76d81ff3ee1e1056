"""What was accepted is kept: streams go on where they broke, repeated calls get the same bytes, after a restart too."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir, model_dir
from infeng_serve.auth import Keys
from infeng_serve.journal import Entry, Journal
from serve_parts import running, slowed

from infeng_core.api import UsageError

STORY = {
    "model": "bard",
    "prompt": "The king",
    "max_tokens": 48,
    "temperature": 0.9,
    "stream": True,
    "n": 2,
    "ignore_eos": True,
}


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


def frames(data: bytes) -> list[tuple[str, bytes]]:
    """Return (id, frame) of a stream's frames."""
    found = []
    for frame in data.split(b"\n\n")[:-1]:
        head = frame.split(b"\n")[0]
        found.append((head.removeprefix(b"id: ").decode() if head.startswith(b"id: ") else "", frame))
    return found


def texts(found: list[tuple[str, bytes]]) -> list[tuple[str, list[str]]]:
    """Return what each choice says in these frames, and how it ends; how frames are cut does not count."""
    said: list[tuple[str, list[str]]] = [("", []), ("", [])]
    for _, frame in found:
        data = frame.split(b"data: ", 1)[1]
        for choice in json.loads(data)["choices"] if data != b"[DONE]" else ():
            text, ends = said[choice["index"]]
            said[choice["index"]] = (
                text + choice["text"],
                ends + [choice["finish_reason"]] * bool(choice["finish_reason"]),
            )
    return said


def rest(base: str, last: str, **headers: str) -> httpx.Response:
    call = last.rsplit("/", 1)[0]
    return httpx.get(f"{base}/v1/streams/{call}", headers={"last-event-id": last, **headers}, timeout=60)


def test_a_stream_goes_on_behind_any_frame_also_in_another_server(tmp_path: Path):
    with running(journal=str(tmp_path)) as one:
        whole = httpx.post(f"{one.url}/v1/completions", json=STORY, timeout=60).content
        found = frames(whole)
        assert len(found) > 6 and all(id for id, frame in found if frame != b"data: [DONE]")
        for index in (0, 1, 4, len(found) - 2):
            again = frames(rest(one.url, found[index][0]).content)
            assert texts(again) == texts(found[index + 1 :])
            assert again[-1][1] == b"data: [DONE]"
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
    body = {"prompt": "The king", "max_tokens": 300, "ignore_eos": True}
    with running() as served, slowed(served.engine, 0.003):
        answers: list[int] = []

        def ask() -> None:
            with httpx.Client(timeout=60) as client:
                head = {"idempotency-key": "same"}
                answers.append(client.post(f"{served.url}/v1/completions", json=body, headers=head).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [200, 409, 409]
        ask()
        assert answers[-1] == 200


# ---------------------------------------------------------------------------------------------------------- kill -9 ---


def serve(tmp_path: Path) -> tuple[subprocess.Popen[bytes], str]:
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    program = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, "serve", str(model_dir()), "--port", "0", "-t", "1"]
    command += ["--ready-file", str(ready), "--journal", str(tmp_path / "journal")]
    command += ["--lora", f"bard={adapter_dir('shakespeare')}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not ready.exists():
        assert process.poll() is None, "the server ended"
        time.sleep(0.02)
    return process, ready.read_text().strip()


def collected(base: str, path: str, got: list[bytes], **more: Any) -> bool:
    """Add whole frames of a stream to ``got``; return whether it came to its end."""
    method = "POST" if "json" in more else "GET"
    held = b""
    try:
        with httpx.stream(method, f"{base}{path}", timeout=60, **more) as response:
            assert response.status_code == 200, response.read()
            for data in response.iter_bytes():
                *whole, held = (held + data).split(b"\n\n")
                got += whole
    except httpx.HTTPError:
        pass
    return bool(got) and got[-1] == b"data: [DONE]"


def killed(tmp_path: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    bodies = [
        {"model": "bard" if k % 2 else None, "prompt": "The king " * (k + 1), "max_tokens": 160, "seed": k + 1,
         "ignore_eos": True, "temperature": 0.8, "stream": True}
        for k in range(4)
    ]  # fmt: skip
    process, base = serve(tmp_path)
    undisturbed: list[list[bytes]] = [[] for _ in bodies]
    for body, got in zip(bodies, undisturbed, strict=True):
        assert collected(base, "/v1/completions", got, json=body)
    for _ in range(times):
        streams: list[list[bytes]] = [[] for _ in bodies]
        ends = [False] * len(bodies)

        def follow(k: int, base: str = base, streams: Any = streams, ends: Any = ends) -> None:
            ends[k] = collected(base, "/v1/completions", streams[k], json=bodies[k])

        threads = [threading.Thread(target=follow, args=(k,)) for k in range(len(bodies))]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.0, 0.5))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for thread in threads:
            thread.join()
        process, base = serve(tmp_path)
        for got, whole, has_ended in zip(streams, undisturbed, ends, strict=True):
            if not got:
                continue  # its client has heard nothing of it: it may ask again
            while not has_ended:
                last = frames(got[-1] + b"\n\n")[0][0]
                has_ended = collected(base, f"/v1/streams/{last.rsplit('/', 1)[0]}", got,
                                      headers={"last-event-id": last})  # fmt: skip
            assert text(got) == text(whole)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


def text(got: list[bytes]) -> list[tuple[str, list[str]]]:
    return texts([("", frame) for frame in got])


@pytest.mark.slow
def test_streams_survive_a_killed_server(tmp_path: Path):
    killed(tmp_path, 8, 1)


@pytest.mark.nightly
def test_streams_survive_fifty_killed_servers(tmp_path: Path):
    killed(tmp_path, 50, 2)
