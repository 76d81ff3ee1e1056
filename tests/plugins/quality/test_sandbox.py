"""Programs of strangers: what they may do, and how each way of doing harm ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cheats import CHEATS, HARMLESS

pytest.importorskip("infeng_quality", reason="the quality wheel is not installed")

from infeng_quality.tasks import sandbox
from infeng_quality.tasks.kinds import TASKS, items

KEPT_APART = sandbox.run("").isolated
TESTS = "import math\nassert f(2) == 4\nassert math.isclose(f(3), 9)\n"


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
def test_each_program_has_its_expected_outcome(program: str, reason: str) -> None:
    found = sandbox.run(program)
    assert found.reason == reason
    assert found.passed is (reason == "passed")


@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import time; time.sleep(60)", "import os, time; os.setsid(); time.sleep(60)"],
    ids=["loop", "sleep", "session"],
)
def test_an_endless_program_is_killed(program: str) -> None:
    begin = time.monotonic()
    assert sandbox.run(program, 0.7).reason == "timeout"
    assert time.monotonic() - begin < 5


def test_a_program_is_killed_at_its_memory_limit() -> None:
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


def test_no_process_or_file_of_a_program_remains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    assert sandbox.run("open('mine', 'w')").passed
    assert not list(tmp_path.iterdir())


def without_namespaces(folder: Path) -> Path:
    """Return a program that is refused them: it asks for a kind that no kernel knows."""
    program = sandbox.SANDBOXED.read_text()
    refusing = program.replace("LIBC.unshare(kinds", "LIBC.unshare(1 | kinds")
    assert refusing != program
    for name in ("judging.py", "wire.py"):
        shutil.copy(sandbox.SANDBOXED.with_name(name), folder)
    (folder / "sandboxed.py").write_text(refusing)
    return folder / "sandboxed.py"


def test_without_namespaces_limits_still_hold_and_the_outcome_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "SANDBOXED", without_namespaces(tmp_path))
    assert sandbox.run("x = 1") == sandbox.Outcome(True, "passed", False)
    assert sandbox.run("import os; os.fork()").reason == "failed"
    assert sandbox.run("x = bytearray(2 << 30)").reason == "failed"
    assert sandbox.run("import time; time.sleep(9)", 0.5).reason == "timeout"


@pytest.mark.skipif(not KEPT_APART, reason="no namespaces here")
@pytest.mark.parametrize("name", CHEATS)
def test_no_cheating_program_passes_its_tests(name: str) -> None:
    assert not sandbox.run(CHEATS[name], 2, tests=TESTS).passed


@pytest.mark.parametrize("name", HARMLESS)
def test_no_cheating_program_passes_its_tests_without_namespaces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "SANDBOXED", without_namespaces(tmp_path))
    assert not sandbox.run(CHEATS[name], 5, tests=TESTS).passed


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x * x", TESTS),
        ("from math import isclose\nf = lambda x: float(x) ** 2", TESTS),
        ("class f(int):\n    def __new__(c, x): return int.__new__(c, x * x)", TESTS),
        ("class P:\n    def __init__(s, a): s.a = a\ndef f(p): return p.a", "assert f(P(3)) == 3\nassert P(4).a == 4"),
        ("class P: pass\ndef f(p): return p.x", "p = P()\np.x = [1, {2: (3, None)}]\nassert f(p)[1][2] == (3, None)"),
        ("def f(): yield from (1, 2)", "assert list(f()) == [1, 2] and tuple(f()) == (1, 2)"),
        (
            "from collections import OrderedDict\ndef f(): return OrderedDict(a={1, 2}, b=1j)",
            "assert f() == {'a': {1, 2}, 'b': 1j}",
        ),
        ("def f(x): return x << 9999", "assert f(1) == 1 << 9999 and f(-1) == -1 << 9999"),
        (
            "def f(x): return x",
            "x = [float('inf'), -0.0, b'\\xff', '\\ud800', frozenset({1}), True]\nassert repr(f(x)) == repr(x)",
        ),
        ("def f(x): return 1 / x", "try: f(0)\nexcept ZeroDivisionError: pass\nelse: raise AssertionError"),
        ("def f(x, kind): return isinstance(x, kind), kind", "assert f(3, int) == (True, int)"),
        ("VALUES = [1, 2]", "assert VALUES == [1, 2]"),
    ],
)
def test_a_program_may_return_any_type(program: str, tests: str) -> None:
    assert sandbox.run(program, tests=tests).passed


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("def f(x): return x", TESTS),
        ("def g(x): return x", TESTS),
        ("", TESTS),
        ("def f(x): return x * x", "assert f(2) == 5"),
        ("def f(x): return x * x", "this is no Python"),
        ("def f(x): raise AssertionError", "try: f(1)\nexcept AssertionError: pass"),
    ],
)
def test_a_wrong_program_fails(program: str, tests: str) -> None:
    assert sandbox.run(program, tests=tests).reason == "failed"


def test_a_function_may_have_the_name_of_a_builtin() -> None:
    program = "def sum(a, b): return a * b\ndef abs(x): return 0\ndef f(x): return 0"
    assert sandbox.run(program, tests="assert sum(3, 4) == 12", entries={"sum"}).passed
    assert not sandbox.run(program, tests="assert abs(f(2) - 4) < 1e-6", entries={"f"}).passed


def test_tests_call_the_questions_helpers_and_not_the_answers(tmp_path: Path) -> None:
    setup = "def helper(x): return x + 1\ndef f(x):\n    pass\n"
    tests = "def check(candidate):\n    assert candidate(1) == helper(1)\ncheck(f)\n"
    right = "def helper(x): return x + 1\ndef f(x): return helper(x)"
    wrong = "def helper(x): return None\ndef f(x): return helper(x)"
    assert sandbox.run(right, tests=tests, setup=setup, entries="f").passed
    assert not sandbox.run(wrong, tests=tests, setup=setup, entries="f").passed


@pytest.mark.skipif(not KEPT_APART, reason="no namespaces here")
def test_a_program_sees_only_libraries_of_this_machine(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    library = str(Path(os.__file__).parent)
    program = f"""
import os, sys
assert not os.path.exists({str(secret)!r}) and not os.path.exists({__file__!r})
seen = set(os.listdir("/"))
assert seen <= {{"usr", "lib", "lib64", "dev", "work", {library!r}.split("/")[1]}}, seen
assert not os.path.exists("/proc/self") and not os.path.exists("/etc/passwd")
assert sorted(os.listdir("/dev")) == ["null", "urandom", "zero"]
assert os.getcwd() == "/work" and not os.listdir("/work")
import sqlite3, tempfile
tempfile.TemporaryFile().write(b"x")
for place in ("/", "/usr", "/dev", {library!r}):
    try: open(place + "/x", "w")
    except OSError: pass
    else: raise SystemExit(1)
try: os.chroot("/work")
except PermissionError: pass
else: raise SystemExit(1)
"""
    assert sandbox.run(program).reason == "passed"


@pytest.mark.skipif(not KEPT_APART, reason="no namespaces here")
def test_a_program_reaches_no_shared_memory_of_this_machine() -> None:
    libc = ctypes.CDLL(None)
    shared = libc.shmget(0x1F3A7, 4096, 0o1666)  # created
    try:
        assert shared >= 0
        assert sandbox.run("import ctypes\nassert ctypes.CDLL(None).shmget(0x1F3A7, 0, 0) == -1").passed
    finally:
        libc.shmctl(shared, 0, None)  # removed


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param("humaneval", "HumanEval.jsonl.gz", marks=pytest.mark.slow),
        pytest.param("mbpp", "mbpp.jsonl", marks=pytest.mark.nightly),
    ],
)
def test_the_published_solutions_pass(name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 60)  # one counts to itself for long
    if "INFENG_TEST_DATA" not in os.environ:
        pytest.skip("INFENG_TEST_DATA is not set")
    questions = items(TASKS[name], str(Path(os.environ["INFENG_TEST_DATA"]) / "eval" / file))
    with ThreadPoolExecutor(2) as workers:
        reasons = dict(
            zip((one.name for one in questions), workers.map(lambda one: one.judge(one.gold), questions), strict=True)
        )
    assert {name: reason for name, reason in reasons.items() if reason != "passed"} == {}
