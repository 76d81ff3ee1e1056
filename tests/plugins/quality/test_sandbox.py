"""Programs of strangers: what they may do, and how each way of doing harm ends."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")

from infeng_quality.tasks import sandbox

KEPT_APART = sandbox.run("").isolated


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import math, decimal, heapq\nassert math.sqrt(4) == 2", "passed"),
        ("from typing import List\nimport collections.abc, json.tool, concurrent.futures, importlib.util", "passed"),
        ("open('mine', 'w').write('x'); assert open('mine').read() == 'x'", "passed"),
        ("assert False", "failed"),
        ("def f(:", "failed"),
        ("import sys; sys.exit(0)", "failed"),  # it left before its tests
        ("import os; os._exit(0)", "failed"),
        ("import os\nwhile True: os.fork()", "failed"),
        ("import threading\nthreading.Thread(target=print).start()", "failed"),
        ("import subprocess; subprocess.run(['true'])", "failed"),
        ("import resource; resource.setrlimit(resource.RLIMIT_NPROC, (99, 99))", "failed"),
        ("x = bytearray(2 << 30)", "failed"),
        ("f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20)); f.flush()", "failed"),
        ("files = [open('f%d' % i, 'w') for i in range(100)]", "failed"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("print('x' * 10**8)", "passed"),  # to nobody
    ],
)
def test_a_program_ends_as_it_deserves(program: str, reason: str) -> None:
    found = sandbox.run(program)
    assert found.reason == reason
    assert found.passed is (reason == "passed")


@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import time; time.sleep(60)", "import os, time; os.setsid(); time.sleep(60)"],
    ids=["loop", "sleep", "session"],
)
def test_a_program_without_end_is_ended(program: str) -> None:
    begin = time.monotonic()
    assert sandbox.run(program, 0.7).reason == "timeout"
    assert time.monotonic() - begin < 5


def test_a_program_that_takes_all_memory_is_ended_without_taking_it() -> None:
    assert sandbox.run("x = []\nwhile True: x.append(bytearray(1 << 28))", 20).reason == "failed"


@pytest.mark.skipif(not KEPT_APART, reason="no namespaces here")
def test_a_program_sees_no_network_no_files_to_write_and_no_other_process(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert not sandbox.run(f"open({str(tmp_path / 'x')!r}, 'w').write('x')").passed
    assert not list(tmp_path.iterdir())
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address, 1).close()
        assert not sandbox.run(f"import socket; socket.create_connection({address!r}, 1)").passed
    ours = f"import os\ntry: os.kill({os.getpid()}, 0)\nexcept ProcessLookupError: pass\nelse: raise SystemExit(1)"
    assert sandbox.run(ours).passed


def test_nothing_of_a_program_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    assert sandbox.run("open('mine', 'w')").passed
    assert not list(tmp_path.iterdir())


def test_without_namespaces_limits_still_hold_and_the_outcome_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jail = sandbox.JAIL.read_text()
    refusing = jail.replace("LIBC.unshare(", "LIBC.unshare(1 | ")  # a flag that no kernel knows
    assert refusing != jail
    (tmp_path / "jail.py").write_text(refusing)
    monkeypatch.setattr(sandbox, "JAIL", tmp_path / "jail.py")
    assert sandbox.run("x = 1") == sandbox.Outcome(True, "passed", False)
    assert sandbox.run("import os; os.fork()").reason == "failed"
    assert sandbox.run("x = bytearray(2 << 30)").reason == "failed"
    assert sandbox.run("import time; time.sleep(9)", 0.5).reason == "timeout"
