"""One kernel against the reference: on awkward cases of its op, and at the sizes of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from infeng_inspect.api import NoJudgeError, OneOp, first_difference, sequences, variants

from infeng_core.api.kernels import Kernel, Pool, Problem, describe, problem
from infeng_kit.cases import Case, Fields, cases, linear_of, reference

ROWS = (1, 2, 7, 16, 130)
"""Rows at the sizes of a model: decoding, a few requests, a block of rows, a chunk of a prompt."""
MACS = 1 << 27
"""Multiplications of all numbers of rows of one problem together: some seconds of the reference."""
CUT = 512
"""A problem with many rows that takes more has fewer outputs, whose number has the same rest modulo this."""

Notice = Callable[[str], None]
"""Gets the name of each case before it runs, so that a crash names it."""


def suite(kernel: Kernel, formats: Sequence[tuple[str, str]] = ()) -> list[Case]:
    """Return the awkward cases that a kernel accepts.

    formats: weight formats of the kernel's library, each with what its linears read.
    """
    found = [*cases(kernel.op)]
    if kernel.op == "linear":
        found += [case for format, act in formats for case in linear_of(format, act)]
    return [case for case in found if fits(kernel, case.problem)]


def fits(kernel: Kernel, asked: Problem) -> bool:
    """Return whether a kernel can be bound to a problem: its steps, its needs, and what the kernel itself says."""
    if not set(asked.epilogues) <= set(kernel.fuses) or not set(asked.needs) <= set(kernel.handles):
        return False
    return kernel.accepts(asked)


def different(kernel: Kernel, chosen: Sequence[Case], notice: Notice, judge: Kernel | None = None) -> Iterator[str]:
    """Yield each case on which a kernel differs from the reference, or writes where it must not, with the place.

    judge: the plain kernel of an op that a library describes, in place of the reference's.
    """
    for case in chosen:
        notice(case.name)
        wanted, _ = case.outputs(None, judge)
        found, damage = case.outputs(kernel)
        place = damage or first_difference(kernel.bound, wanted, found)
        if place is not None:
            yield f"case {case.name}: {place}"


def different_at_size(
    kernel: Kernel, asked: Problem, fields: Fields, notice: Notice, judge: Kernel | None = None
) -> Iterator[str]:
    """Yield the numbers of rows with which a kernel differs from the reference, or ``judge``, on a problem of a model.

    Two threads, and then one: a kernel must write the same bytes in whatever ranges its tiles run.
    """
    counts, fields = _affordable(fields)
    for adapters, rows in variants(fields, counts):
        steps = [sequences(fields, count) for count in rows]
        case = {**fields, "rows": [min(rows), max(rows)]}
        notice(describe(problem(case)))
        others = () if judge is None else (judge,)
        trusted = OneOp(case, None, reference(), steps, adapters=adapters, others=others)
        wanted = [trusted.run(step) for step in range(len(steps))]
        for threads in (2, 1):
            tried = OneOp(case, kernel, reference(), steps, adapters=adapters, pool=Pool(threads, spin_us=0))
            for step, count in enumerate(rows):
                notice(f"{describe(problem(case))}, {count} rows on {threads} threads")
                found = tried.run(step)
                place = tried.damage or first_difference(kernel.bound, wanted[step], found)
                if place is not None:
                    yield f"{describe(asked)}: with {count} rows on {threads} threads, {place}"
                    return


def cut(fields: Fields, most: int) -> Fields:
    """Return a problem over a weight with so few outputs that it has about ``most`` weights; others as they are."""
    if "weight" not in fields or fields.get("n", 1) * fields.get("k", 1) <= most:
        return fields
    outputs = max(0, most // fields["k"] // CUT - 1) * CUT + (fields["n"] % CUT or CUT)
    return {**fields, "n": min(outputs, fields["n"])}


def _affordable(fields: Fields) -> tuple[list[int], Fields]:
    """Return the numbers of rows to try, and the problem, cut where already the first number takes too long."""
    low, high = fields["rows"]
    wanted = [rows for rows in ROWS if low <= rows <= high] or [low]
    cost = fields.get("n", 1) * fields.get("k", 1)
    if "weight" in fields and cost * wanted[0] > MACS:
        fields = cut(fields, MACS // wanted[0])
        cost = fields["n"] * fields["k"]
    counts = wanted[:1]
    for rows in wanted[1:]:
        if (sum(counts) + rows) * cost <= MACS:
            counts.append(rows)
    return counts, fields


__all__ = ["MACS", "ROWS", "NoJudgeError", "cut", "different", "different_at_size", "fits", "suite"]
