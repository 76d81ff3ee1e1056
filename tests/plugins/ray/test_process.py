"""A replica's server as a process: its place, its cores, its end with its parent, and streams that outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from infeng_demo import adapter_dir, model_dir
from infeng_ray.process import Place, Plan, ServerProcess
from ray_parts import SECRET, gateway
from serve_parts import ask, until
from stream_parts import DONE, texts

from infeng_core.errors import ResourceError

TOKENS = 150
BODY = {
    "model": "bard", "prompt": "The king", "max_tokens": TOKENS, "seed": 3, "ignore_eos": True, "temperature": 0.8,
    "stream": True,
}  # fmt: skip


def plan(tmp_path: Path, **more: Any) -> Plan:
    lora = f"bard={adapter_dir('shakespeare')}"
    return Plan((str(model_dir()), "--lora", lora, "--threads", "1"), "127.0.0.1", 1, SECRET, app=tmp_path.name, **more)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_places_are_numbered_and_freed(tmp_path: Path):
    first, second = Place(tmp_path / "places"), Place(tmp_path / "places")
    assert (first.number, second.number) == (0, 1)
    first.close()
    third = Place(tmp_path / "places")
    assert third.number == 0
    usable = sorted(os.sched_getaffinity(0))
    assert third.cores(1) == usable[:1] and second.cores(len(usable)) == []
    second.close()
    third.close()


def test_a_place_is_taken_through_no_link(tmp_path: Path):
    (tmp_path / "places").mkdir(mode=0o700)
    (tmp_path / "target").touch()
    (tmp_path / "places" / "0.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        Place(tmp_path / "places")


def test_a_server_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path):
    with pytest.raises(ResourceError, match=r"(?s)it ended with status 2: .*no such model directory"):
        ServerProcess(Plan(("/nowhere/at/all",), "127.0.0.1", 1, SECRET, app=tmp_path.name))


@pytest.mark.slow
def test_a_server_is_pinned_drains_and_frees_its_place(tmp_path: Path):
    server = ServerProcess(plan(tmp_path))
    try:
        assert os.sched_getaffinity(server.pid) == set(server.cores) and len(server.cores) == 1
        host, _, port = server.url.removeprefix("http://").partition(":")
        state = ask((host, int(port)), "/replica", x_infeng_replica=SECRET).json
        assert state == {"ready": True, "running": 0, "waiting": 0, "resident": []}
        server.check()
    finally:
        server.drain()
    assert not alive(server.pid)
    with pytest.raises(ResourceError, match="it ended with status 0"):
        server.check()


@pytest.mark.slow
def test_a_server_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path):
    code = (
        "import sys, time\nfrom infeng_ray.process import Plan, ServerProcess\n"
        f"server = ServerProcess(Plan(({str(model_dir())!r},), '127.0.0.1', 1, 'x', app={tmp_path.name!r}))\n"
        "print(server.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert until(lambda: not alive(child), 20)


def read_while(url: str, got: list[bytes], started: threading.Event) -> None:
    with httpx.stream("POST", f"{url}/v1/completions", json=BODY, timeout=120) as answer:
        assert answer.status_code == 200
        for data in answer.iter_bytes():
            got.append(data)
            if len(got) >= 3:
                started.set()


def killed_within_a_stream(tmp_path: Path, *, journal: str) -> tuple[bytes, bytes]:
    """Return a whole stream, and that of a call whose server is killed in its middle and started again."""
    given = plan(tmp_path, journal=journal)
    server = ServerProcess(given)
    try:
        with gateway({"first": server.url}, journal=journal or None) as gated:
            whole: list[bytes] = []
            read_while(gated.url, whole, threading.Event())
            got: list[bytes] = []
            started = threading.Event()
            thread = threading.Thread(target=read_while, args=(gated.url, got, started))
            thread.start()
            assert started.wait(60)
            os.kill(server.pid, signal.SIGKILL)
            server.kill()
            server = ServerProcess(given)
            gated.members["second"] = server.url
            del gated.members["first"]
            thread.join(120)
            assert not thread.is_alive()
            text = gated.ask("/metrics").data.decode()
            assert "infeng:gateway_lost_total 1.0" in text
            assert f"infeng:gateway_resumed_total {float(bool(journal))}" in text
    finally:
        server.kill()
    return b"".join(whole), b"".join(got)


@pytest.mark.slow
def test_a_stream_whose_replica_is_killed_goes_on_with_the_same_bytes_from_its_journal(tmp_path: Path):
    whole, got = killed_within_a_stream(tmp_path, journal=str(tmp_path / "journal"))

    def said(data: bytes) -> Any:
        return texts([("", frame[frame.index(b"data: ") :]) for frame in data.split(b"\n\n")[:-1]])

    assert said(got) == said(whole)
    ids = [line for line in got.split(b"\n") if line.startswith(b"id: ")]
    assert len({line.partition(b"/")[0] for line in ids}) == 1 and len(ids) == len(set(ids))
    assert got.endswith(DONE + b"\n\n")


@pytest.mark.slow
def test_without_a_journal_a_stream_whose_replica_is_killed_ends_with_a_typed_error(tmp_path: Path):
    _, got = killed_within_a_stream(tmp_path, journal="")
    *_, error, done, rest = got.split(b"\n\n")
    assert b'"code":"replica_lost"' in error and (done, rest) == (DONE, b"")
