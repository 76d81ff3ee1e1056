"""The resources that this process used: processor time per core and thread, memory, huge pages. Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_core.machine import proc

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Core:
    """One core over a span of time, all processes together; fractions of the span."""

    index: int
    busy: float
    stolen: float
    """Time taken by the hypervisor."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of this process over a span of time."""

    name: str
    seconds: float
    waited_seconds: float
    """Seconds ready to run while another thread had the core."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource use in a span of time. Fields are empty if the system does not report them."""

    seconds: float
    cpu_seconds: float
    """Processor time of the whole process, including ended threads."""
    cores: tuple[Core, ...]
    """The cores that this process may use."""
    threads: tuple[Thread, ...]
    """The threads alive at its end, busiest first."""


class Meter:
    """Measures resource use from its creation on."""

    def __init__(self) -> None:
        """Start measuring."""
        self._cores, self._threads = _cores(), _threads()
        self._cpu, self._begin = time.process_time(), time.perf_counter()

    def read(self) -> Usage:
        """Return the resources used since the start."""
        seconds, cpu = time.perf_counter() - self._begin, time.process_time() - self._cpu
        cores, threads = _cores(), _threads()
        return Usage(
            seconds,
            cpu,
            tuple(
                _core(index, self._cores[index], cores[index]) for index in sorted(self._cores.keys() & cores.keys())
            ),
            tuple(sorted(self._threads_since(threads), key=lambda thread: -thread.seconds)),
        )

    def _threads_since(self, now: Mapping[int, tuple[str, int, int]]) -> Iterator[Thread]:
        for number, (name, ran, waited) in now.items():
            _, ran_before, waited_before = self._threads.get(number, (name, 0, 0))
            yield Thread(name, (ran - ran_before) / 1e9, (waited - waited_before) / 1e9)


@dataclass(frozen=True, slots=True)
class HugePages:
    """The memory for which huge pages were requested: weights, cache and scratch; bytes."""

    resident: int
    huge: int

    @property
    def coverage(self) -> float | None:
        """The fraction that huge pages back; None if none were requested."""
        return self.huge / self.resident if self.resident else None


def huge_pages() -> HugePages | None:
    """Return how much of the memory that requested huge pages has them, or None if the system does not report it."""
    resident = huge = entry_resident = entry_huge = 0
    lines = _lines("self/smaps")
    for line in lines:
        key, _, value = line.partition(":")
        if key == "Rss":
            entry_resident = _kilobytes(value)
        elif key == "AnonHugePages":
            entry_huge = _kilobytes(value)
        elif key == "VmFlags" and "hg" in value.split():  # madvise(MADV_HUGEPAGE)
            resident += entry_resident
            huge += entry_huge
    return HugePages(resident, huge) if any(line.startswith("VmFlags:") for line in lines) else None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of this process in bytes; of pages shared between processes it counts its part."""

    anonymous: int
    """Anonymous memory: copied weights, cache, scratch, heap."""
    mapped: int
    """Pages of files: libraries, and weights if ``model.load`` is mmap."""
    peak: int
    """The approximate peak of both together, assuming the present amount of file pages."""

    @property
    def total(self) -> int:
        """Both together."""
        return self.anonymous + self.mapped


def footprint() -> Footprint | None:
    """Return the present memory of this process, or None if the system does not report it.

    An older Linux counts shared pages as this process's alone.
    """
    whole = proc.sizes(PROC / "self/status", anonymous="RssAnon", mapped="RssFile", peak="VmHWM")
    if len(whole) < 3:
        return None
    found = whole | proc.sizes(PROC / "self/smaps_rollup", anonymous="Pss_Anon", mapped="Pss_File")
    peak = whole["peak"] - whole["mapped"] + found["mapped"]
    return Footprint(found["anonymous"], found["mapped"], peak)


def peak_rss() -> int | None:
    """Return the peak memory of this process in bytes, or None if the system does not report it."""
    return proc.sizes(PROC / "self/status", peak="VmHWM").get("peak")


def _core(index: int, before: tuple[int, ...], after: tuple[int, ...]) -> Core:
    user, nice, system, idle, waiting, hard, soft, stolen = (b - a for a, b in zip(before, after, strict=True))
    busy = user + nice + system + hard + soft
    total = max(1, busy + idle + waiting + stolen)
    return Core(index, max(0, busy) / total, max(0, stolen) / total)


def _cores() -> dict[int, tuple[int, ...]]:
    """Return {core: ticks as user, nice, system, idle, iowait, irq, softirq, steal} of the usable cores."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    result = {}
    for line in _lines("stat"):
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed and len(ticks) >= 8:
            result[int(name[3:])] = tuple(int(tick) for tick in ticks[:8])
    return result


def _threads() -> dict[int, tuple[str, int, int]]:
    """Return {thread: (name, nanoseconds run, nanoseconds waited)}."""
    result = {}
    try:
        numbers = [int(folder.name) for folder in (PROC / "self/task").iterdir()]
    except OSError:
        return {}
    for number in numbers:
        name, times = _lines(f"self/task/{number}/comm"), _lines(f"self/task/{number}/schedstat")
        if name and times:  # the thread may have ended meanwhile
            ran, waited, _ = times[0].split()
            result[number] = name[0], int(ran), int(waited)
    return result


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def _lines(name: str) -> list[str]:
    return proc.text(PROC / name).splitlines()
