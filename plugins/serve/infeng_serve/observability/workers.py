"""The time of each worker of the engine, which the kernel counts: reading it costs the steps nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ENGINE = "infeng-engine"
"""Name of the thread that runs the steps, which is worker 0."""

_WORKER = re.compile(r"infeng-([0-9]+)")
_TASKS = Path("/proc/self/task")


class Times(NamedTuple):
    """Seconds since a worker's start."""

    busy: float
    """On a core: in tiles, or spinning until the next step of the program."""
    waiting: float
    """Ready to run while its core had something else."""


def times() -> dict[str, Times]:
    """Return the times of the workers by their numbers; {} where the system does not count them.

    Worker 0 is the engine's own thread, if it has been started. Workers of several engines in one process count
    together.
    """
    found: dict[str, Times] = {}
    for number, task in sorted(_workers()):
        try:
            ran, waited, *_ = map(int, (_TASKS / f"{task}/schedstat").read_text(encoding="ascii").split())
        except (OSError, ValueError):  # the thread has ended, or the kernel keeps no statistics
            continue
        before = found.get(str(number), Times(0.0, 0.0))
        found[str(number)] = Times(before.busy + ran / 1e9, before.waiting + waited / 1e9)
    return found


def _workers() -> Iterator[tuple[int, int]]:
    """Yield the number and the thread of each worker."""
    for thread in threading.enumerate():
        if thread.name == ENGINE and thread.native_id is not None:
            yield 0, thread.native_id
    try:
        tasks = [int(folder.name) for folder in _TASKS.iterdir()]
    except OSError:
        return
    for task in tasks:
        try:
            name = (_TASKS / f"{task}/comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if found := _WORKER.fullmatch(name):
            yield int(found[1]), task
