"""Resources of a process, from the real /proc and from one made for the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from infeng_profile import process
from infeng_profile.process import Meter


def burn(seconds: float) -> None:
    """Use the processor for a while."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_busy_thread_shows_in_the_process_and_in_its_own_line() -> None:
    meter = Meter()
    burn(0.1)
    usage = meter.read()
    assert usage.cpu_seconds >= 0.1
    assert usage.seconds >= 0.1
    if usage.threads:
        assert usage.threads[0].seconds >= 0.09
        assert all(thread.waited_seconds >= 0 for thread in usage.threads)


def test_a_thread_that_ended_still_counts_for_the_process() -> None:
    meter = Meter()
    thread = threading.Thread(target=burn, args=(0.1,))
    thread.start()
    thread.join()
    assert meter.read().cpu_seconds >= 0.1


def make_proc(folder: Path, monkeypatch: pytest.MonkeyPatch, stat: str, task: dict[int, tuple[str, str]]) -> None:
    """Let the module read a /proc of the test's own."""
    for number, (name, times) in task.items():
        (folder / "self/task" / str(number)).mkdir(parents=True, exist_ok=True)
        (folder / "self/task" / str(number) / "comm").write_text(name + "\n")
        (folder / "self/task" / str(number) / "schedstat").write_text(times + "\n")
    (folder / "stat").write_text(stat)
    monkeypatch.setattr(process, "PROC", folder)
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)


def test_cores_are_those_we_may_use_with_what_the_hypervisor_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, unused = "cpu  1 1 1 1 1 1 1 1 0 0\n", "cpu1 9 9 9 9 9 9 9 9 0 0\n"
    before = every + "cpu0 100 0 50 500 0 0 0 10 0 0\n" + unused + "cpu2 0 0 0 0 0 0 0 0 0 0\n"
    after = every + "cpu0 140 5 60 520 10 2 3 20 0 0\n" + unused + "cpu2 0 0 0 100 0 0 0 0 0 0\n"
    make_proc(tmp_path, monkeypatch, before, {7: ("main", "1000000000 5000000 3")})
    meter = Meter()
    make_proc(tmp_path, monkeypatch, after, {7: ("main", "1500000000 25000000 9"), 8: ("infeng-1", "2000000000 0 1")})
    usage = meter.read()
    assert [(core.index, core.busy, core.stolen) for core in usage.cores] == [(0, 0.6, 0.1), (2, 0.0, 0.0)]
    assert [(t.name, t.seconds, t.waited_seconds) for t in usage.threads] == [
        ("infeng-1", 2.0, 0.0), ("main", 0.5, 0.02)
    ]  # fmt: skip


def test_usage_is_empty_if_the_system_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROC", tmp_path / "none")
    usage = Meter().read()
    assert (usage.cores, usage.threads) == ((), ())
