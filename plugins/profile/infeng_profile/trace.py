"""Chrome's trace format, which Perfetto reads: one track per thread, stages and ops as slices.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from typing import Any

from infeng_core.api.engines import Measured
from infeng_profile.totals import Slice

RUN = "run"  # the stage in which the program runs; its thread is worker 0


def chrome(slices: Iterable[Slice], measured: Measured | None) -> dict[str, Any]:
    """Return the trace as plain data; times in microseconds from the first slice on.

    Threads that call the engine come first, with worker 0's ops inside their "run" slices, then the other workers.
    An op whose "run" slice was dropped is left out.
    """
    kept = sorted(slices, key=lambda each: (each[2], -each[3]))
    tracks = {thread: number for number, thread in enumerate(dict.fromkeys(thread for _, thread, _, _ in kept))}
    names = {number: "engine" + (f" {number + 1}" if number else "") for number in tracks.values()}
    events: list[tuple[Any, ...]] = [
        (tracks[thread], begin, end, stage, "stage", {}) for stage, thread, begin, end in kept
    ]
    if measured is not None:
        for worker in range(1, len(measured.events)):
            names[len(tracks) + worker - 1] = f"worker {worker}"
        events += _ops(measured, [each for each in kept if each[0] == RUN], tracks)
    origin = min((begin for _, begin, *_ in events), default=0)
    found = [
        {
            "ph": "X", "pid": os.getpid(), "tid": tid, "ts": (begin - origin) / 1e3, "dur": (end - begin) / 1e3,
            "name": name, "cat": category, "args": args,
        }
        for tid, begin, end, name, category, args in events
    ]  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": [*_metadata(names), *found]}


def _metadata(names: dict[int, str]) -> Iterator[dict[str, Any]]:
    pid = os.getpid()
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "infeng"}}
    for tid, name in names.items():
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _ops(measured: Measured, runs: list[Slice], tracks: dict[int, int]) -> Iterator[tuple[Any, ...]]:
    begins = [begin for _, _, begin, _ in runs]
    for worker, events in enumerate(measured.events):
        for event in events.tolist():
            begin, end, step, op, kernel, phase, rows, tiles = event
            place = bisect.bisect_right(begins, (begin + end) // 2) - 1
            if place < 0 or begin > runs[place][3]:
                continue
            # Both clocks are the same, but the native reading is scaled and may be some nanoseconds off.
            begin, end = max(begin, runs[place][2]), min(end, runs[place][3])
            names = measured.ops[op]
            args = {"op": names.op, "index": op, "kernel": names.kernels[kernel], "rows": rows, "tiles": tiles}
            name = f"{names.op} {names.detail}" + (f" phase {phase}" if phase else "")
            track = tracks[runs[place][1]] if worker == 0 else len(tracks) + worker - 1
            yield track, begin, end, name, names.op, args | {"phase": phase, "step": step}
