"""How busy each core was, all programs together: Linux's /proc/stat."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

STAT = Path("/proc/stat")
MOST = 4096
"""Most cores that a result lists."""

Ticks = tuple[int, int, int]
"""Busy, stolen by the host, and all ticks of a core since the boot."""


def ticks() -> dict[int, Ticks]:
    """Return the ticks of the cores that this process may use; {} if the system does not report them."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    found: dict[int, Ticks] = {}
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    for line in lines:
        name, *words = line.split() or [""]
        counts = [int(word) for word in words[:8] if word.isdigit()]
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed and len(counts) == 8:
            user, nice, system, idle, waiting, hard, soft, stolen = counts
            busy = user + nice + system + hard + soft
            found[int(name[3:])] = busy, stolen, busy + idle + waiting + stolen
    return dict(sorted(found.items())[:MOST])


def used(before: Mapping[int, Ticks], after: Mapping[int, Ticks]) -> dict[str, dict[str, float]]:
    """Return {core: {"busy", "stolen"}}, shares of the time between two readings."""
    found = {}
    for core in sorted(before.keys() & after.keys()):
        busy, stolen, every = (max(0, late - early) for early, late in zip(before[core], after[core], strict=True))
        if every:
            found[str(core)] = {"busy": min(1.0, busy / every), "stolen": min(1.0, stolen / every)}
    return found
