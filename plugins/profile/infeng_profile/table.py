"""A profile as a readable text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from infeng_inspect.api import HugePages

from infeng_core.api.engines import Measured
from infeng_profile.counters import Counts
from infeng_profile.process import Usage
from infeng_profile.totals import OpTotal, StageTotal, op_classes


class Profile(Protocol):
    """The parts of a profile that a table shows."""

    measured: Measured | None
    usage: Usage | None
    peak_rss: int | None
    huge_pages: HugePages | None
    counters: Counts

    @property
    def stages(self) -> dict[str, StageTotal]:
        """By name."""

    @property
    def ops(self) -> list[OpTotal]:
        """In the order of the model."""


INSIDE = ("schedule", "run", "sample", "detokenize")  # within a step, in this order


def lines(profile: Profile) -> Iterator[str]:
    """Yield the stages, the ops, and what the process used."""
    ops, measured = profile.ops, profile.measured
    workers = f" on {len(measured.events)} threads" if measured else ""
    seconds = profile.usage.seconds if profile.usage else 0.0
    rows = f", {measured.rows} rows" if measured else ""
    yield f"profile of {seconds:.2f} s: {_step_count(profile)} steps{rows}{workers}"
    yield ""
    yield from _aligned(("stage", "calls", "ms", "share", "ms/step"), list(_stages(profile, ops)))
    if ops:
        yield ""
        heads = ("op", "calls", "ms", "share", "ms/step", "busy", "late", "wait", "GMAC/s", "GB/s", "kernel")
        yield from _aligned(heads, [_op(profile, op) for op in ops])
        yield "share: of the steps; busy, late, wait: workers' time in tiles, before the first, after the last"
    yield ""
    yield from _process(profile)


def _step_count(profile: Profile) -> int:
    return profile.stages["step"].calls if "step" in profile.stages else 0


def _stages(profile: Profile, ops: Sequence[OpTotal]) -> Iterator[tuple[str, ...]]:
    stages, measured = profile.stages, profile.measured
    if "tokenize" in stages:
        yield _row(profile, "tokenize", stages["tokenize"].calls, stages["tokenize"].seconds)
    if "step" not in stages:
        return
    for name in INSIDE:
        if name in stages:
            yield _row(profile, name, stages[name].calls, stages[name].seconds)
        if name == "run" and measured and name in stages:
            for kind in op_classes(ops):
                yield _row(profile, f"  {kind.op}", kind.calls, kind.seconds)
            yield _row(profile, "  check", None, (measured.head_ns + measured.tail_ns) / 1e9)
            yield _row(profile, "  call", None, stages[name].seconds - measured.step_ns / 1e9)
    rest = stages["step"].seconds - sum(stages[name].seconds for name in INSIDE if name in stages)
    yield _row(profile, "rest", None, rest)
    yield _row(profile, "step", stages["step"].calls, stages["step"].seconds)


def _row(profile: Profile, name: str, calls: int | None, seconds: float) -> tuple[str, ...]:
    return name, "" if calls is None else str(calls), *_times(profile, seconds)


def _times(profile: Profile, seconds: float) -> tuple[str, str, str]:
    """Return milliseconds, the share of all steps, and milliseconds per step."""
    step = profile.stages.get("step")
    if step is None or not step.seconds:
        return f"{seconds * 1e3:.2f}", "", ""
    return f"{seconds * 1e3:.2f}", f"{100 * seconds / step.seconds:.1f}%", f"{seconds * 1e3 / step.calls:.3f}"


def _op(profile: Profile, op: OpTotal) -> tuple[str, ...]:
    waiting = op.worker_seconds - op.busy_seconds - op.late_seconds
    return (
        f"{op.op} {op.detail}",
        str(op.calls),
        *_times(profile, op.seconds),
        *(f"{100 * part / op.worker_seconds:.0f}%" for part in (op.busy_seconds, op.late_seconds, waiting)),
        "" if op.gmacs_per_s is None else f"{op.gmacs_per_s:.1f}",
        "" if op.gbytes_per_s is None else f"{op.gbytes_per_s:.1f}",
        op.kernel,
    )


def _process(profile: Profile) -> Iterator[str]:
    usage, pages, counts = profile.usage, profile.huge_pages, profile.counters
    if usage is not None and usage.seconds:
        yield f"processor   {usage.cpu_seconds / usage.seconds:.2f} cores' worth of time"
        for core in usage.cores:
            stolen = f", {100 * core.stolen:.0f}% taken by the hypervisor" if core.stolen >= 0.005 else ""
            yield f"  core {core.index}    {100 * core.busy:.0f}% busy, all processes together{stolen}"
        for thread in usage.threads:
            if thread.seconds >= 0.01 * usage.seconds:
                part = f"{100 * thread.seconds / usage.seconds:.0f}% running"
                waited = f"{100 * thread.waited_seconds / usage.seconds:.0f}% waiting for a core"
                yield f"  {thread.name:<9} {part}, {waited}"
    if profile.peak_rss is not None:
        yield f"memory      {profile.peak_rss / 1e6:.0f} MB at most"
    if pages is not None and pages.coverage is not None:
        yield f"huge pages  {100 * pages.coverage:.0f}% of {pages.resident / 1e6:.0f} MB of weights, cache and scratch"
    for name, value in counts.values.items():
        yield f"{name:<11} {value}{_per_cycle(name, counts.values)}"
    for why in dict.fromkeys(counts.unavailable.values()):
        names = ", ".join(name for name, reason in counts.unavailable.items() if reason == why)
        yield f"counters    {names}: unavailable: {why}"


def _per_cycle(name: str, values: Mapping[str, int]) -> str:
    if name != "instructions" or not values.get("cycles"):
        return ""
    return f", {values['instructions'] / values['cycles']:.2f} per cycle"


def _aligned(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows under their heads: numbers to the right, the first column and the column "kernel" to the left."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, *rows):
        cells = [
            cell.ljust(width) if head == "kernel" or place == 0 else cell.rjust(width)
            for place, (head, cell, width) in enumerate(zip(heads, row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
