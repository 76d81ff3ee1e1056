"""The sums of a profile: by stage of requests, and by op and kernel of the program, layers together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from infeng_core.api.engines import Measured, Stage

Slice = tuple[str, int, int, int]
"""One call: stage, Python's number of the thread, begin and end in nanoseconds of ``time.perf_counter_ns``."""


@dataclass(frozen=True, slots=True)
class StageTotal:
    """All calls of a stage."""

    name: str
    calls: int
    seconds: float


class Stages:
    """Counts calls and time per stage and keeps the latest ``events`` calls."""

    def __init__(self, events: int) -> None:
        """Start from zero."""
        self.slices: deque[Slice] = deque(maxlen=events)
        self._sums: dict[str, list[int]] = {}  # calls, nanoseconds
        self._lock = threading.Lock()

    def stage(self, name: Stage, begin: int, end: int) -> None:
        """Count a call."""
        self.slices.append((name, threading.get_ident(), begin, end))
        with self._lock:
            sums = self._sums.setdefault(name, [0, 0])
            sums[0] += 1
            sums[1] += end - begin

    def totals(self) -> dict[str, StageTotal]:
        """Return the stages that were called, by name."""
        with self._lock:
            return {name: StageTotal(name, calls, ns / 1e9) for name, (calls, ns) in self._sums.items()}


@dataclass(frozen=True, slots=True)
class OpTotal:
    """Sums over equal ops of all layers under one kernel."""

    op: str
    detail: str
    kernel: str
    calls: int
    rows: int
    seconds: float
    """Seconds from the moment an op could start to the end of its last worker, all phases."""
    worker_seconds: float
    """The same, times the number of workers: in tiles, late or waiting."""
    busy_seconds: float
    """Seconds of all workers together in tiles."""
    late_seconds: float
    """Seconds of all workers together, from that moment to their first tile."""
    macs: int
    """Multiply-adds of matrix products; 0 for ops without."""
    bytes: int
    """Bytes of weights, adapters, keys and values, each read or written once; 0 for ops without."""

    @property
    def gmacs_per_s(self) -> float | None:
        """Billions of multiply-adds a second, None for ops without."""
        return self.macs / self.seconds / 1e9 if self.macs and self.seconds else None

    @property
    def gbytes_per_s(self) -> float | None:
        """Billions of bytes a second, None for ops without."""
        return self.bytes / self.seconds / 1e9 if self.bytes and self.seconds else None


def op_totals(measured: Measured) -> list[OpTotal]:
    """Return the ops that ran, in the order of the model."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, phase in enumerate(measured.phases):
        names = measured.ops[phase["op"]]
        groups.setdefault((names.op, names.detail, names.kernels[phase["kernel"]]), []).append(index)
    return [_sum(measured, *key, members) for key, members in groups.items()]


def op_classes(ops: Sequence[OpTotal]) -> list[OpTotal]:
    """Return the sums per kind of op ("linear", "attention", ...), in the order of the model."""
    kinds = dict.fromkeys(op.op for op in ops)
    sums = [field.name for field in fields(OpTotal) if field.name not in ("op", "detail", "kernel")]
    return [
        OpTotal(kind, "", "", **{name: sum(getattr(op, name) for op in ops if op.op == kind) for name in sums})
        for kind in kinds
    ]


def _sum(measured: Measured, op: str, detail: str, kernel: str, members: list[int]) -> OpTotal:
    phases, workers = measured.phases[members], measured.workers[members]
    # A phase without tiles is not counted, so the most frequent phase gives the number of calls.
    calls: dict[int, tuple[int, int]] = {}
    for phase in phases:
        key = int(phase["op"])
        calls[key] = max(calls.get(key, (0, 0)), (int(phase["calls"]), int(phase["rows"])))
    return OpTotal(
        op,
        detail,
        kernel,
        calls=sum(count for count, _ in calls.values()),
        rows=sum(rows for _, rows in calls.values()),
        seconds=int(phases["wall_ns"].sum()) / 1e9,
        worker_seconds=int(phases["wall_ns"].sum()) * workers.shape[1] / 1e9,
        busy_seconds=int(workers["busy_ns"].sum()) / 1e9,
        late_seconds=int(workers["late_ns"].sum()) / 1e9,
        macs=int(phases["macs"].sum()),
        bytes=int(phases["bytes"].sum()),
    )
