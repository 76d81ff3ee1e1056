"""A supervisor is told by systemd's protocol: on a real socket, by a real server."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from infeng_demo import model_dir
from infeng_serve.notify import Supervisor


@pytest.fixture(params=["file", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The name of a socket as NOTIFY_SOCKET has it, and the socket."""
    path = f"{tmp_path}/notify" if request.param == "file" else f"@infeng-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind("\0" + path[1:] if path.startswith("@") else path)
        opened.settimeout(60)
        yield path, opened


@pytest.mark.slow
def test_a_server_tells_when_it_is_ready_alive_and_stopping(listening: tuple[str, socket.socket]):
    path, opened = listening
    code = "import sys; from infeng_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "serve", str(model_dir()), "--port", "0", "-t", "1"]
    environment = os.environ | {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        first = opened.recv(4096).decode().split("\n")
        assert first[0] == "READY=1" and first[1].startswith("STATUS=Serving model at http://127.0.0.1:")
        assert [opened.recv(4096), opened.recv(4096)] == [b"WATCHDOG=1"] * 2
        server.send_signal(signal.SIGTERM)
        said = b"WATCHDOG=1"
        while said == b"WATCHDOG=1":
            said = opened.recv(4096)
        assert said == b"STOPPING=1\nSTATUS=Draining"
        assert server.wait(60) == 0


async def _until(supervisor: Supervisor, is_well: list[bool]) -> None:
    await supervisor.watch(lambda: is_well.pop(0))


def test_signs_of_life_stop_while_a_step_hangs(listening: tuple[str, socket.socket]):
    import asyncio

    path, opened = listening
    supervisor = Supervisor({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000"})
    with pytest.raises(IndexError):
        asyncio.run(_until(supervisor, [True, False, False, True]))
    assert [opened.recv(100), opened.recv(100)] == [b"WATCHDOG=1"] * 2
    assert not select.select([opened], [], [], 0.05)[0]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),  # of another process
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "9" * 400}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdogs_patience_is_read(environment: dict[str, str], seconds: float):
    assert Supervisor(environment, pid=7).seconds == seconds


@pytest.mark.parametrize("place", ["", "relative", "/nowhere/at/all", "@nobody-listens", "/" + "x" * 500])
def test_without_a_supervisor_nothing_fails_and_nothing_waits(place: str):
    begin = time.monotonic()
    Supervisor({"NOTIFY_SOCKET": place}).ready("here")
    assert time.monotonic() - begin < 5


def test_a_line_end_cannot_add_a_line(listening: tuple[str, socket.socket]):
    path, opened = listening
    Supervisor({"NOTIFY_SOCKET": path}).ready("model\nMAINPID=1")
    assert opened.recv(100) == b"READY=1\nSTATUS=model MAINPID=1"
