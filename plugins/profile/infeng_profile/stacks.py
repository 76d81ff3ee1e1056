"""A profile as collapsed stacks, the input of flame graphs: one line per stack, its frames from the root, its time.

Format: flamegraph.pl (https://github.com/brendangregg/FlameGraph), which speedscope and others read too:
``frame;frame;frame count``. Counts are microseconds of wall-clock time. Frames below ``run`` are the op, its detail,
its kernel, the phase, and then how the workers spent the phase: each worker's tiles, its late start, its wait. The
time of a phase is shared among the workers, so that the widths of a level add up to that of the level above.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from infeng_core.api.engines import Measured
from infeng_profile.totals import StageTotal

INSIDE = ("schedule", "run", "sample", "detokenize")
"""Stages within a step."""

ROOT = "infeng"
MOST_FRAME = 200


def collapsed(stages: Mapping[str, StageTotal], measured: Measured | None) -> Iterator[str]:
    """Yield the lines of a profile; times below half a microsecond are left out."""
    for name, nanoseconds in _stacks(stages, measured):
        count = round(nanoseconds / 1000)
        if count > 0:
            yield f"{';'.join(map(_frame, name))} {count}"


def _stacks(stages: Mapping[str, StageTotal], measured: Measured | None) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the frames of a stack and its nanoseconds."""
    spent = {name: 1e9 * total.seconds for name, total in stages.items()}
    for name in spent.keys() - {"step", *INSIDE}:
        yield (ROOT, name), spent[name]
    for name in INSIDE:
        if name in spent and not (name == "run" and measured):
            yield (ROOT, "step", name), spent[name]
    if "step" in spent:
        yield (ROOT, "step", "rest"), spent["step"] - sum(spent.get(name, 0.0) for name in INSIDE)
    if measured is None or "run" not in spent:
        return
    run = (ROOT, "step", "run")
    yield (*run, "check"), measured.head_ns + measured.tail_ns
    yield (*run, "call"), spent["run"] - measured.step_ns
    for frames, nanoseconds in _phases(measured):
        yield (*run, *frames), nanoseconds


def _phases(measured: Measured) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield op, detail, kernel, phase and worker, layers together."""
    sums: dict[tuple[str, ...], float] = {}
    count = measured.workers.shape[1]
    several = {int(phase["op"]) for phase in measured.phases if phase["phase"]}
    for phase, workers in zip(measured.phases, measured.workers, strict=True):
        names = measured.ops[phase["op"]]
        frames: tuple[str, ...] = (names.op, names.detail or names.op, names.kernels[phase["kernel"]])
        if int(phase["op"]) in several:
            frames = (*frames, f"phase {int(phase['phase'])}")
        for worker in range(count):
            busy, late = int(workers["busy_ns"][worker]), int(workers["late_ns"][worker])
            waiting = int(phase["wall_ns"]) - busy - late
            for what, nanoseconds in (("tiles", busy), ("late", late), ("wait", waiting)):
                key = (*frames, f"worker {worker}", what)
                sums[key] = sums.get(key, 0.0) + nanoseconds / count
    yield from sums.items()


def _frame(name: str) -> str:
    """Return a name that ends neither a frame nor a line."""
    cleaned = "".join("," if char == ";" else char if char.isprintable() else " " for char in name)
    return cleaned[:MOST_FRAME].strip() or "?"
