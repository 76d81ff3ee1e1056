"""The resources that this process used: processor time per core and thread. Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_core.api.kernels import proc

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


def _lines(name: str) -> list[str]:
    return proc.text(PROC / name).splitlines()
