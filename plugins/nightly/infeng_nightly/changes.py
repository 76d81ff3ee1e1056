"""What is different between two runs besides their figures: versions, kernels, settings, the commit, the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infeng_nightly.history import Run

MACHINE = ("system", "memory_bytes", "quota", "huge_pages")
MOST = 40
"""Most changes of one kind that are listed."""


def changes(before: Run, after: Run) -> list[tuple[str, str, str]]:
    """Return (what, before, after) of everything that differs."""
    found = [("commit", before.commit or "-", after.commit or "-")] if before.commit != after.commit else []
    found += list(_of("", before.versions, after.versions))
    found += list(_of("setting ", before.settings, after.settings))
    machines = [{name: run.machine.get(name) for name in MACHINE} for run in (before, after)]
    found += list(_of("machine: ", machines[0], machines[1]))
    for model in sorted(before.kernels.keys() & after.kernels.keys()):
        old, new = set(before.kernels[model]), set(after.kernels[model])
        if old and new and old != new:
            found.append((f"kernels of {model}", _listed(old - new), _listed(new - old)))
    return found


def _of(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    names = sorted(before.keys() | after.keys())
    differing = [name for name in names if before.get(name) != after.get(name)]
    for name in differing[:MOST]:
        yield f"{prefix}{name}", str(before.get(name, "-")), str(after.get(name, "-"))


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:MOST]) + (f" and {len(shown) - MOST} more" if len(shown) > MOST else "") or "-"
