"""One profile: the work of an engine between two moments, and the time that each part took."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakSet

from infeng_inspect.api import HugePages, huge_pages, peak_rss

from infeng_core.api import Engine, KernelError, UsageError
from infeng_core.api.engines import Measurable, Measured, Observer, Stage
from infeng_profile import stacks, table, trace
from infeng_profile.counters import Counters, Counts
from infeng_profile.process import Meter, Usage
from infeng_profile.totals import OpTotal, Stages, StageTotal, op_totals

MOST_EVENTS = 1 << 24
"""Half a gigabyte for each thread."""

_profiled: WeakSet[Engine] = WeakSet()
"""Engines with a profile now."""


class Profile:
    """The work of an engine while it was measured. It is complete once its ``with`` block has ended.

    ``print(profile.table())``, ``profile.write_trace("trace.json")``, ``profile.as_dict()`` for machines.
    """

    def __init__(self, events: int) -> None:
        """Made by ``profile``."""
        self.events = events
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
        _write(path, json.dumps(trace.chrome(self.timers.slices, self.measured)))

    def write_stacks(self, path: str | Path) -> None:
        """Write collapsed stacks for flamegraph.pl or https://speedscope.app; raises UsageError if it cannot."""
        _write(path, "".join(f"{line}\n" for line in stacks.collapsed(self.stages, self.measured)))

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
        """Take the final readings; ``profile`` calls it."""
        self.measured = measured
        self.usage = self._meter.read()
        self.counters = self._counters.read()
        self._counters.close()
        self.peak_rss, self.huge_pages = peak_rss(), huge_pages()


@contextmanager
def profile(engine: Engine, *, events: int = 65536) -> Iterator[Profile]:
    """Measure an engine's work inside a ``with`` block: ``with profile(engine) as measured: ...``.

    Afterwards ``measured.table()`` is a text, ``measured.write_trace(path)`` writes a trace for Perfetto,
    ``measured.write_stacks(path)`` the input of a flame graph. It costs
    about 0.2 us for each op of a step, and nothing outside the block. Steps of other threads are measured too.
    events: the latest events of each thread that are kept for the trace.

    Raises UsageError if a profile is running already.
    """
    if isinstance(events, bool) or not hasattr(events, "__index__") or not 1 <= events <= MOST_EVENTS:
        raise UsageError("events", f"is {reprlib.repr(events)}", f"give a whole number from 1 to {MOST_EVENTS}")
    made = Profile(int(events))
    with engine.observe(_Timed(engine, made)):
        yield made


def _write(path: str | Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "give a file that can be written") from error


class _Timed(Observer):
    """The observer that begins and ends a profile between two steps."""

    def __init__(self, engine: Engine, made: Profile) -> None:
        self._engine, self._made = engine, made

    def begin(self) -> None:
        if self._engine in _profiled:
            raise UsageError("profile", "this engine is being measured already", "end that profile first")
        executable = self._engine.executable
        if isinstance(executable, Measurable):
            executable.profile(True, events=self._made.events)
        _profiled.add(self._engine)

    def stage(self, name: Stage, begin: int, end: int) -> None:
        self._made.timers.stage(name, begin, end)

    def end(self) -> None:
        _profiled.discard(self._engine)
        self._made.end(_measured(self._engine))


def _measured(engine: Engine) -> Measured | None:
    executable = engine.executable
    if not isinstance(executable, Measurable):
        return None
    try:
        measured = executable.measured()
    except KernelError:  # the engine was closed
        return None
    executable.profile(False)
    return measured
