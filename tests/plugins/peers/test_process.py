"""Other engines as processes: what goes wrong in them is an error that names the engine and its log."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from infeng_bench import processes
from infeng_bench.engine.work import Work
from infeng_bench.processes import PeerError
from infeng_peers.process import EngineProcess

FAKE = Path(__file__).with_name("fake_peer.py")


class Started:
    """Starts fake peers and ends them."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "logs" / "fake.log"
        self.running: list[EngineProcess] = []

    def __call__(self, fault: str, timeout: float = 30.0) -> EngineProcess:
        engine = EngineProcess("fake", [sys.executable, str(FAKE), fault, "50"], self.log, timeout)
        self.running.append(engine)
        return engine


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    for engine in started.running:
        engine.close()


def state(pid: int) -> str:
    """Return the letter of a process's state: T is stopped, which follows the signal within a moment."""
    for _ in range(200):
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if letter == "T":
            break
        time.sleep(0.01)
    return letter


def test_an_engine_process_answers_and_is_stopped_in_between(start: Started) -> None:
    engine = start("none")
    assert engine.ready()["version"] == "7"
    pid = engine.process.pid
    assert state(pid) == "T"
    assert engine.measure(Work("decode", 1, 8), 3)["tokens_per_s"] == 53
    assert state(pid) == "T"
    assert engine.measure(Work("decode", 1, 8), 4)["tokens_per_s"] == 54
    engine.close()
    assert engine.process.returncode == 0


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("crash-load", "loading: its process ended with SIGSEGV: error: about to crash"),
        ("exit-load", "loading: its process ended with status 3: error: about to exit"),
        ("garbage-load", "loading: it answered with 'Loading weights: 12%', which is no JSON object"),
        ("stray-load", "which is no JSON object"),
        ("error-load", "loading: no such tensor"),
        ("zero-load", "its first line does not say that it is ready"),
    ],
)
def test_a_peer_that_fails_to_load_is_named_with_its_log(start: Started, fault: str, text: str) -> None:
    engine = start(fault)
    with pytest.raises(PeerError) as caught:
        engine.ready()
    assert str(caught.value).startswith("fake: ")
    assert text in str(caught.value)
    assert f"see {start.log}" in str(caught.value)
    assert "about to" in start.log.read_text()
    assert engine.process.returncode is not None  # nothing is left running


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("crash-work", "decode:rows=1,context=1024: its process ended with SIGSEGV"),
        ("exit-work", "decode:rows=1,context=1024: its process ended with status 3"),
        ("garbage-work", "which is no JSON object"),
        ("error-work", "decode:rows=1,context=1024: no such tensor"),
        ("zero-work", "has no tokens_per_s above 0"),
    ],
)
def test_the_error_of_a_failed_work_names_peer_and_work(start: Started, fault: str, text: str) -> None:
    engine = start(fault)
    engine.ready()
    with pytest.raises(PeerError, match=r"^fake: ") as caught:
        engine.measure(Work("decode"), 0)
    assert text in str(caught.value)
    assert str(start.log) in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang-load", "hang-work"])
def test_a_peer_that_hangs_is_killed_after_its_time_limit(start: Started, fault: str) -> None:
    engine = start(fault, timeout=1.0)
    with pytest.raises(PeerError, match=r"no answer in 1 s.*--timeout"):
        engine.ready()
        engine.measure(Work("decode"), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(engine.process.pid, 0)


def test_a_peer_that_exited_while_stopped_is_an_error(start: Started) -> None:
    engine = start("none")
    engine.ready()
    engine.process.kill()
    engine.process.wait()
    with pytest.raises(PeerError, match="ended with SIGKILL"):
        engine.measure(Work("decode"), 0)


def test_a_peer_that_does_not_exit_is_killed(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    engine = start("deaf-end")
    engine.ready()
    begin = time.monotonic()
    engine.close()
    assert time.monotonic() - begin < 10
    assert engine.process.returncode == -9


def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="No such file"):
        EngineProcess("fake", [str(tmp_path / "python")], tmp_path / "log", 1.0)


@pytest.mark.parametrize("rows", [2, 16])
def test_an_engine_that_does_not_count_rows_times_steps_gives_no_figure(start: Started, rows: int) -> None:
    engine = start("none")  # it says 32 of any work
    engine.ready()
    with pytest.raises(PeerError, match=f"it counts 32 tokens instead of {32 * rows}"):
        engine.measure(Work("decode", rows, 8), 0)
