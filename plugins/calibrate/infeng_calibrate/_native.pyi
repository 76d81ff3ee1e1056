"""Types of the extension module: quantization by statistics of the inputs of linear ops.

Arrays are C-contiguous and of the named type, so functions never write to a copy. The GIL is released.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import NativeError as NativeError

def round_inputs(
    x: NDArray[np.float32], group: int = 64, threads: int = 1, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the rows ``x``, (rows, k), as integer kernels read them: int8 with a scale for every ``group`` inputs."""

def add_gram(x: NDArray[np.float32], h: NDArray[np.float64], threads: int = 1) -> None:
    """Add x'x to the upper triangle of ``h``, (k, k); x is (rows, k). Equal bits for every number of threads.

    Columns are rounded to 12 bits in blocks of 512 rows, whose sums are exact; four blocks are added at a time.
    """

def add_cross(y: NDArray[np.float32], x: NDArray[np.float32], c: NDArray[np.float64], threads: int = 1) -> None:
    """Add y'x to ``c``, (m, k); y is (rows, m), x (rows, k). Rounding and sums are as in ``add_gram``."""

def factor(h: NDArray[np.float64], threads: int = 1) -> None:
    """Replace the lower triangle of ``h``, symmetric (k, k), by L below the diagonal and D on it, h = L D L'.

    Raises NativeError "out_of_range" where h is not positive definite.
    """

def choose_scales(
    w: NDArray[np.float32],  # (n, k)
    weight: NDArray[np.float64],  # (k,)
    group: int,
    low: int,
    high: int,
    half: bool,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Return the scales (n, groups) for codes from low to high with the least sum of weight * error^2."""

def choose_sub_scales(
    w: NDArray[np.float32],  # (n, k)
    weight: NDArray[np.float64],  # (k,)
    bits: int,  # of a code: 4, 5, 6
    threads: int = 1,
) -> SubScales:
    """Return the scales, sub-scales and zero points with the least sum of weight * error^2."""

class SubScales(NamedTuple):
    """Scales, sub-scales and zero points of a matrix."""

    scales: NDArray[np.float32]  # (n, 1)
    sub_scales: NDArray[np.int8]  # (n, groups)
    zeros: NDArray[np.int8]  # (n, groups)

def refit_scales(
    w: NDArray[np.float32],  # (n, k)
    q: NDArray[np.int8],  # (n, k)
    h: NDArray[np.float64],  # (k, k) symmetric
    d: NDArray[np.float32],  # (n, 1)
    threads: int = 1,
) -> None:
    """Set each row's ``d`` to (w' H q) / (q' H q), which has the least loss with the integers q; in place.

    A ``d`` that would not become positive stays.
    """

def aim(
    w: NDArray[np.float32],  # (n, k)
    drift: NDArray[np.float64],  # (k, k)
    order: NDArray[np.int32],  # (k,) a permutation
    factors: NDArray[np.float64],  # (k, k) of ``factor``, row and column i of input order[k - 1 - i]
    threads: int = 1,
) -> NDArray[np.float32]:
    """Return w + w drift H^-1, (n, k), for the H that was factored.

    drift = (Y - X)'X / n, for inputs X of the quantized model and Y of the reference. Equal bits for every number of
    threads.
    """

def choose_codes(
    w: NDArray[np.float32],  # (n, k)
    order: NDArray[np.int32],  # (k,) a permutation
    factors: NDArray[np.float64],  # (k, k) of ``factor``, row and column i of input order[k - 1 - i]
    step: NDArray[np.float32],  # (n, groups)
    low: NDArray[np.int8],  # (n, groups)
    high: NDArray[np.int8],  # (n, groups)
    group: int,
    threads: int = 1,
) -> NDArray[np.int8]:
    """Return codes (n, k), weight = step * code; each column compensates the errors of the columns before it."""

def descend(
    w: NDArray[np.float32],  # (n, k)
    h: NDArray[np.float64],  # (k, k) symmetric
    damping: float,  # added to its diagonal
    d: NDArray[np.float32],  # (n, 1)
    s: NDArray[np.int8],  # (n, groups)
    z: NDArray[np.int8],  # (n, groups)
    codes: NDArray[np.int8],  # (n, k) less the zero points
    bits: int,  # of a code: 4, 5, 6
    threads: int = 1,
) -> None:
    """Choose ``s``, ``z`` and ``codes`` again, in place: in each row one group of 32 at a time, the others fixed.

    The loss of a row by h does not grow, up to rounding.
    """
