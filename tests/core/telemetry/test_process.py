"""Resources of a process, from the real /proc and from one made for the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native
from infeng_core.telemetry import process
from infeng_core.telemetry.process import Footprint, HugePages, Meter


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
    assert process.huge_pages() is None
    assert process.peak_rss() is None


def test_huge_pages_count_only_memory_that_asked_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/smaps").write_text(
        "7f00-7f10 rw-p 0 00:00 0\nRss:  4096 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr mr mw me ac hg\n"
        "7f20-7f30 rw-p 0 00:00 0\nRss:  8192 kB\nAnonHugePages:  8192 kB\nVmFlags: rd wr mr mw me ac\n"
        "7f40-7f50 rw-p 0 00:00 0\nRss:  2048 kB\nAnonHugePages:  2048 kB\nVmFlags: rd wr hg\n"
    )
    monkeypatch.setattr(process, "PROC", tmp_path)
    assert process.huge_pages() == HugePages(6144 * 1024, 4096 * 1024)
    assert HugePages(6144, 4096).coverage == pytest.approx(2 / 3)
    assert HugePages(0, 0).coverage is None


def test_memory_of_an_arena_shows_and_the_peak_stays() -> None:
    before, peak = process.huge_pages(), process.peak_rss()
    if before is None or peak is None:
        pytest.skip("the system does not say")
    arena = _native.Arena(64 << 20)
    memoryview(arena)[:] = bytes(64 << 20)
    now = process.huge_pages()
    assert now is not None
    assert now.resident >= before.resident + (64 << 20)
    assert now.huge - before.huge >= arena.huge_bytes() - (4 << 20)
    del arena
    assert (process.peak_rss() or 0) >= peak


STATUS = "VmHWM:\t 9000 kB\nVmRSS:\t 8000 kB\nRssAnon:\t 5000 kB\nRssFile:\t 3000 kB\n"
ROLLUP = "Rss: 8000 kB\nPss: 5800 kB\nPss_Anon: 4900 kB\nPss_File: 900 kB\nSwapPss: 0 kB\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"status": STATUS, "smaps_rollup": ROLLUP}, Footprint(4900 << 10, 900 << 10, 6900 << 10)),
        ({"status": STATUS}, Footprint(5000 << 10, 3000 << 10, 9000 << 10)),
        ({"status": "VmRSS:\t 8000 kB\n"}, None),
    ],
)
def test_a_process_counts_its_part_of_shared_pages(
    files: dict[str, str], found: Footprint | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_proc(tmp_path, monkeypatch, "", {})
    (tmp_path / "self").mkdir()
    for name, text in files.items():
        (tmp_path / "self" / name).write_text(text)
    assert process.footprint() == found


def test_memory_that_is_touched_is_in_the_footprint() -> None:
    before = process.footprint()
    if before is None:
        pytest.skip("this system does not say")
    arena = _native.Arena(32 << 20, huge_pages=False)
    np.frombuffer(arena, np.uint8)[:] = 1
    after = process.footprint()
    assert after is not None and 30 << 20 < after.total - before.total < 40 << 20
    assert after.peak >= after.anonymous
