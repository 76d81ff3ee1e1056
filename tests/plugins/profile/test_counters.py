"""Hardware counters: the kernel's own if available, else the reason, and the arithmetic in between."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from infeng_profile import counters
from infeng_profile.counters import HARDWARE, Counters, explain, open_event


class Kernel:
    """Stands at the system call: every counter is a pipe that holds two readings."""

    def __init__(self, readings: dict[int, list[tuple[int, int, int]]], refused: dict[int, int] | None = None) -> None:
        self.readings = readings
        self.refused = refused or {}
        self.opened: list[tuple[int, int]] = []
        self.threads = 1

    def open(self, kind: tuple[int, int], thread: int) -> int:
        """Be ``open_event``."""
        if kind[1] in self.refused and (len(self.opened) + 1) % self.threads == 0:
            code = self.refused[kind[1]]
            raise OSError(code, os.strerror(code))
        self.opened.append((kind[1], thread))
        reader, writer = os.pipe()
        os.write(writer, b"".join(struct.pack("QQQ", *reading) for reading in self.readings[kind[1]]))
        os.close(writer)
        return reader


def install(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, threads: list[int]) -> None:
    """Let counters ask ``kernel``."""
    kernel.threads = len(threads)
    monkeypatch.setattr(counters, "open_event", kernel.open)
    monkeypatch.setattr(counters, "_threads", lambda: threads)


def test_counts_are_differences_summed_over_threads_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel({0: [(100, 10, 10), (600, 20, 20)], 1: [(0, 0, 0), (400, 30, 10)], 3: [(5, 1, 1), (5, 2, 2)]})
    install(monkeypatch, kernel, [11, 12])
    found = Counters()
    counts = found.read()
    assert counts.values == {"cycles": 2 * 500, "instructions": 2 * 400 * 3, "llc_misses": 0}
    assert counts.unavailable == {}
    assert kernel.opened == [(config, thread) for config in (0, 1, 3) for thread in (11, 12)]
    found.close()
    found.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOENT, "common in virtual machines"),
        (errno.EACCES, "kernel.perf_event_paranoid is"),
        (errno.ENOSYS, "no perf_event_open"),
        (errno.EINVAL, "Invalid argument"),
    ],
)
def test_a_refused_counter_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    kernel = Kernel({0: [(1, 1, 1), (3, 2, 2)], 1: [(0, 1, 1)], 3: [(0, 1, 1), (7, 2, 2)]}, refused={1: code})
    install(monkeypatch, kernel, [11])
    found = Counters()
    counts = found.read()
    assert counts.values == {"cycles": 2, "llc_misses": 7}
    assert list(counts.unavailable) == ["instructions"]
    assert words in counts.unavailable["instructions"]
    assert errno.errorcode[code] in counts.unavailable["instructions"]


def test_a_counter_that_fails_on_one_thread_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel({0: [(1, 1, 1)], 1: [(0, 1, 1)], 3: [(0, 1, 1)]}, refused=dict.fromkeys((0, 1, 3), errno.EPERM))
    install(monkeypatch, kernel, [11, 12])
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = Counters()
    assert (found.read().values, len(found.read().unavailable)) == ({}, 3)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_real_kernel_counts_or_refuses_with_a_reason() -> None:
    found = Counters()
    total = sum(i * i for i in range(100_000))
    counts = found.read()
    found.close()
    assert total > 0
    assert set(counts.values) | set(counts.unavailable) == set(HARDWARE)
    for name in ("cycles", "instructions"):
        assert counts.values.get(name, 1) > 0
        assert counts.unavailable.get(name, "a reason")


def test_the_real_kernel_s_software_clock_runs_where_it_is_permitted() -> None:
    task_clock = (1, 1)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: nanoseconds, also in virtual machines
    try:
        os.close(open_event(task_clock, 0))
    except OSError as error:
        pytest.skip(explain(error))
    found = Counters({"task_clock": task_clock})
    sum(i * i for i in range(300_000))
    counts = found.read()
    found.close()
    assert counts.unavailable == {}
    assert counts.values["task_clock"] > 1_000_000


def test_a_system_without_perf_event_open_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters.platform, "system", lambda: "Darwin")
    found = Counters()
    assert all("ENOSYS" in why for why in found.read().unavailable.values())
    assert len(found.read().unavailable) == 3
