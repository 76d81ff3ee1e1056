"""Runs one kernel and the reference on the same small random input and tells whether the results agree.

This module runs in the child process (``probe.py``). Class ``exact`` must give equal bytes; class ``approx`` must stay
within the bound that the kernel states, a fraction of the largest magnitude among the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import NativeError
from infeng_core.api.kernels import A_FORMATS, Kernel, Library, problems, shrink_needs
from infeng_inspect.case import OneOp
from infeng_inspect.judges import NoJudgeError
from infeng_inspect.lora import RandomAdapters
from infeng_inspect.steps import BLOCK, Sequences

MAC_BUDGET = 1 << 25  # multiplications of all row counts together: some tens of milliseconds of the reference


def difference(kernel: Kernel, reference: Library, case: problems.Fields, judge: Kernel | None = None) -> str | None:
    """Return the first place where ``kernel`` differs from the reference on ``case`` or writes where it must not, or
    None.

    judge: of an op that a library describes, its plain kernel, which takes the place of the reference's.

    Raises NativeError if the kernel fails and NoJudgeError if the reference has no kernel to compare with.
    """
    counts = row_counts(case)
    for adapters, rows in variants(case, counts):
        steps = [sequences(case, count) for count in rows]
        try:
            others = [] if judge is None else [judge]
            trusted = OneOp(case, None, reference, steps, adapters=adapters, others=others)
            expected = [trusted.run(step) for step in range(len(steps))]
        except NativeError as error:  # not the kernel's fault
            if judge == kernel:
                raise
            raise NoJudgeError(f"the reference cannot do this case: {error}") from error
        if judge is not None and trusted.damage:
            return f"the plain kernel {judge.library}/{judge.name} cannot judge it: {trusted.damage}"
        tried = OneOp(case, kernel, reference, steps, adapters=adapters)
        for step in (*range(len(steps)), 0):  # the first again: reusable operands must still hold their values
            place = tried.damage or first_difference(kernel.bound, expected[step], tried.run(step)) or tried.damage
            if place is not None:
                storage = f" and adapters in {adapters.storage}" if adapters else ""
                return f"with {rows[step]} rows{storage}, {place}"
    return None


def variants(case: problems.Fields, counts: list[int]) -> Iterator[tuple[RandomAdapters | None, list[int]]]:
    """Yield the choices that a problem leaves open: adapters, and the numbers of rows to try them with."""
    if case["op"] == "shrink":
        yield RandomAdapters(_storage_of(case["weight"], case.get("needs", ()))), counts
    elif "lora" in case.get("epilogues", ()):
        named = [storage for storage in A_FORMATS if f"lora_{storage}" in case.get("needs", ())] or list(A_FORMATS)
        for index, storage in enumerate(named):  # together they need no more steps than one would
            yield RandomAdapters(storage), counts[index :: len(named)] or counts[-1:]
    else:
        yield None, counts


def _storage_of(weight: str, needs: Collection[str]) -> str:
    """Return the storage that a shrink's problem is about."""
    return next(one for one, format in A_FORMATS.items() if format == weight and shrink_needs(one) == [*needs])


def sequences(case: problems.Fields, rows: int) -> Sequences:
    """Return the rows of a step: one sequence at the end of the context, a second near the beginning."""
    first = (rows + 1) // 2
    context = max(int(case.get("context", 0)), rows + 2 * BLOCK)
    return [(first, context - first), *([(rows - first, 3)] if rows > first else [])]


def row_counts(case: problems.Fields) -> list[int]:
    """Return the numbers of rows to try: the ends of the range and a few between, for tails."""
    low, high = case["rows"]
    wanted = sorted({row for row in (low, low + 1, low + 3, low + 6, high) if row <= high})
    cost = case.get("n", 1) * case.get("k", 1)
    counts = [wanted[0]]
    for rows in wanted[1:]:
        if (sum(counts) + rows) * cost <= MAC_BUDGET:
            counts.append(rows)
    return counts


def first_difference(
    bound: float, wanted: Sequence[tuple[str, NDArray[Any]]], found: Sequence[tuple[str, NDArray[Any]]]
) -> str | None:
    """Return the first wrong array and the place of its first wrong value.

    bound: how far a value may be off, as a fraction of the largest magnitude in its array; 0: bytes must be equal.
    """
    places = (
        (name, _exact(one, other) if bound == 0 else _close(one, other, bound))
        for (name, one), (_, other) in zip(wanted, found, strict=True)
    )
    return next((f"{name} {place}" for name, place in places if place is not None), None)


def _exact(wanted: NDArray[Any], found: NDArray[Any]) -> str | None:
    wanted, found = np.ascontiguousarray(wanted), np.ascontiguousarray(found)
    if wanted.tobytes() == found.tobytes():
        return None
    unequal = (wanted.view(np.uint8) != found.view(np.uint8)).reshape(*wanted.shape, -1).any(axis=-1)
    place = tuple(int(i) for i in np.argwhere(unequal)[0])
    where = "row {}, column {}".format(*place) if len(place) == 2 else f"at {place[0]}"
    count = int(np.count_nonzero(unequal))
    values = f"{found[place]} instead of {wanted[place]}"
    return f"differs from the reference {where}: {values} ({count} of {unequal.size} values)"


def _close(wanted: NDArray[Any], found: NDArray[Any], bound: float) -> str | None:
    if wanted.dtype.kind != "f":
        return None  # quantized copies of a result; the result itself is compared
    error = float(np.max(np.abs(np.subtract(found, wanted, dtype=np.float64))))
    most = bound * float(np.max(np.abs(wanted)))
    return None if error <= most else f"is off by {error:.3g}, the bound is {most:.3g}"
