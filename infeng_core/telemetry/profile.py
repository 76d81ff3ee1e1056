"""One profile: the work of an engine between two moments, and the time that each part took."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infeng_core.backends.interface import Executable, Measurable, Measured
from infeng_core.errors import KernelError, UsageError
from infeng_core.telemetry import process, table, trace
from infeng_core.telemetry.counters import Counters, Counts
from infeng_core.telemetry.observers import Observers
from infeng_core.telemetry.process import HugePages, Meter, Usage
from infeng_core.telemetry.totals import OpTotal, Stages, StageTotal, op_totals


class Profile:
    """The work of an engine while it was measured. It is complete once its ``with`` block has ended.

    ``print(profile.table())``, ``profile.write_trace("trace.json")``, ``profile.as_dict()`` for machines.
    """

    def __init__(self, events: int) -> None:
        """Made by ``Engine.profile``."""
        self.timers = Stages(events)
        self.measured: Measured | None = None
        """The ops; None for a backend that does not measure, or an engine that was closed meanwhile."""
        self.usage: Usage | None = None
        self.peak_rss: int | None = None
        """Peak memory of the process in bytes, since its start."""
        self.huge_pages: HugePages | None = None
        self.counters = Counts()
        self._meter = Meter()
        self._counters = Counters()

    @property
    def stages(self) -> dict[str, StageTotal]:
        """The stages by name: tokenize, schedule, run, sample, detokenize, step (which contains all but the first)."""
        return self.timers.totals()

    @property
    def ops(self) -> list[OpTotal]:
        """One entry per op and kernel, the layers together, in the order of the model."""
        return op_totals(self.measured) if self.measured else []

    def table(self) -> str:
        """Return the profile as a readable text."""
        return "\n".join(table.lines(self))

    def write_trace(self, path: str | Path) -> None:
        """Write a Chrome trace for https://ui.perfetto.dev or chrome://tracing; raises UsageError if it cannot."""
        try:
            with Path(path).open("w", encoding="utf-8") as file:
                json.dump(trace.chrome(self.timers.slices, self.measured), file)
        except OSError as error:
            raise UsageError(str(path), error.strerror or str(error), "give a file that can be written") from error

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the single events as plain data; times in seconds, sizes in bytes."""
        measured, pages = self.measured, self.huge_pages
        return {
            "stages": {name: {"calls": s.calls, "seconds": s.seconds} for name, s in self.stages.items()},
            "ops": [asdict(op) | {"gmacs_per_s": op.gmacs_per_s, "gbytes_per_s": op.gbytes_per_s} for op in self.ops],
            "steps": measured.steps if measured else None,
            "rows": measured.rows if measured else None,
            "program_seconds": measured.step_ns / 1e9 if measured else None,
            "threads": len(measured.events) if measured else None,
            "usage": asdict(self.usage) if self.usage else None,
            "peak_rss_bytes": self.peak_rss,
            "huge_pages": asdict(pages) | {"coverage": pages.coverage} if pages else None,
            "counters": {"values": dict(self.counters.values), "unavailable": dict(self.counters.unavailable)},
        }

    def end(self, measured: Measured | None) -> None:
        """Take the final readings; ``Engine.profile`` calls it."""
        self.measured = measured
        self.usage = self._meter.read()
        self.counters = self._counters.read()
        self._counters.close()
        self.peak_rss, self.huge_pages = process.peak_rss(), process.huge_pages()


@contextmanager
def measuring(
    observers: Observers, executable: Executable, in_turn: Callable[[Callable[[], None]], None], events: int
) -> Iterator[Profile]:
    """Time the stages of an engine's work and let ``executable`` measure its ops, for the length of a ``with``.

    in_turn: calls a function between two steps. events: per thread, the latest events kept for a trace. Raises
    UsageError if the engine is already being measured.
    """
    profile = Profile(events)

    def begin() -> None:
        if any(isinstance(one, Stages) for one in observers.present):
            raise UsageError("profile", "this engine is being measured already", "end that profile first")
        if isinstance(executable, Measurable):
            executable.profile(True, events=events)
        observers.add(profile.timers)

    def end() -> None:
        observers.remove(profile.timers)
        profile.end(_measured(executable))

    in_turn(begin)
    try:
        yield profile
    finally:
        in_turn(end)


def _measured(executable: Executable) -> Measured | None:
    if not isinstance(executable, Measurable):
        return None
    try:
        measured = executable.measured()
    except KernelError:  # the engine was closed
        return None
    executable.profile(False)
    return measured
