"""Runs one kernel and the reference on the same small random input and tells whether the results agree.

This module runs in the child process (``probe.py``). Class ``exact`` must give equal bytes; class ``approx`` must stay
within ``APPROX_BOUND`` of the largest magnitude, which bf16 products over these sizes keep and a wrong kernel does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core._native import Kernel, Library
from infeng_core.plug.onelora import dtypes
from infeng_core.plug.oneop import Case
from infeng_core.plug.problems import Fields

APPROX_BOUND = 2.0**-5


def difference(kernel: Kernel, reference: Library, case: Fields) -> str | None:
    """Return where ``kernel`` first departs from the reference on ``case``, or None.

    Raises NativeError if the kernel fails and NoJudgeError if there is nothing to compare it with.
    """
    for dtype in dtypes(case):
        judge = Case(reference, case, None, dtype).run()
        result = Case(reference, case, kernel, dtype).run()
        for rows, expected in judge.items():
            for (name, wanted), (_, found) in zip(expected, result[rows], strict=True):
                place = _exact(wanted, found) if kernel.numerics == "exact" else _close(wanted, found)
                if place is not None:
                    adapters = f" and adapters in {dtype}" if dtype else ""
                    return f"with {rows} rows{adapters}, {name} {place}"
    return None


def _exact(wanted: NDArray[np.generic], found: NDArray[np.generic]) -> str | None:
    wanted, found = np.ascontiguousarray(wanted), np.ascontiguousarray(found)
    if wanted.tobytes() == found.tobytes():
        return None
    unequal = (wanted.view(np.uint8) != found.view(np.uint8)).reshape(*wanted.shape, -1).any(axis=-1)
    place = tuple(int(i) for i in np.argwhere(unequal)[0])
    where = "row {}, column {}".format(*place) if len(place) == 2 else f"at {place[0]}"
    count = int(np.count_nonzero(unequal))
    values = f"{found[place]} instead of {wanted[place]}"
    return f"differs from the reference {where}: {values} ({count} of {unequal.size} values)"


def _close(wanted: NDArray[np.generic], found: NDArray[np.generic]) -> str | None:
    if wanted.dtype.kind != "f":
        return None  # quantized copies of a result that is compared itself
    error = float(np.max(np.abs(np.subtract(found, wanted, dtype=np.float64))))
    bound = APPROX_BOUND * float(np.max(np.abs(wanted)))
    return None if error <= bound else f"is off by {error:.3g}, the bound is {bound:.3g}"
