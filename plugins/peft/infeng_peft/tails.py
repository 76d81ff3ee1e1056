"""Packing into ``int8t4``: the ranks of an adapter by their worth, most of them in 4 bits.

A product B A is decomposed into singular values, so that its ranks are orthogonal and the first ones hold most of it
(Eckart and Young, 1936). The decomposition is that of a small matrix between two orthogonal ones: B A is never formed.
Of every 8 ranks one has 8 bits; the others have 4, under the scale with the smallest squared error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.adapters import tail_layout
from infeng_core.api.formats import PANEL_ROWS, builtin_format, widened
from infeng_peft.floats import to_bf16
from infeng_peft.weights import Floats

BLOCK, GROUP, HEAD, LANES, LINES, ROWS, ZERO = (
    tail_layout.BLOCK,
    tail_layout.GROUP,
    tail_layout.HEAD,
    tail_layout.LANES,
    tail_layout.LINES,
    tail_layout.ROWS,
    tail_layout.ZERO,
)

TOP = 8.0
"""How much larger than the tails the columns of B are that have 8 bits; A is divided by it. All share the scale of
their output, which the tails determine."""

SMALLEST = np.float32(2.0**-100)  # a row with a smaller largest magnitude counts as zero
CLIPPED = np.linspace(1.0, 0.35, 12, dtype=np.float32)
"""Scales that are tried, as fractions of the one under which nothing is clipped."""


class TailFormat(tail_layout.Tails):
    """Panels of ``int8t4``, with the rounding that fills them."""

    def pack(self, rows: Floats, out: NDArray[np.uint8]) -> None:
        """Round (n, k) into whole panels; raises NativeError "not_finite"."""
        format, k = builtin_format("int8-row"), rows.shape[1]
        panels = -(-len(rows) // PANEL_ROWS)
        lanes = np.zeros((panels * PANEL_ROWS, k), np.float32)
        lanes[: len(rows)] = rows
        plain = np.empty(panels * format.panel_bytes(k), np.uint8)
        codes, scales = _rounded(lanes, np.ones(1, np.float32), is_top=_tops(len(lanes))[:, None])
        format.pack_codes(codes, scales[:, None], plain)
        out[:] = compressed(plain.reshape(panels, -1)).reshape(-1)


def compressed(panels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return panels of int8-row, (panels, bytes), whose tails are in [-8, 7], as panels of this storage."""
    q = panels[:, HEAD:].reshape(len(panels), -1, 2 * LINES, LANES, 4)
    nibbles = q - np.uint8(ZERO)
    nibbles[..., ::ROWS, :] = q[..., ::ROWS, :] >> 4
    lines = np.empty((*q.shape[:2], LINES + 1, GROUP), np.uint8)
    lines[:, :, :LINES] = _joined(nibbles).reshape(*q.shape[:2], LINES, GROUP)
    lower = _joined(q[..., ::ROWS, :] & np.uint8(15))  # (panels, groups, 8, 2, 4)
    lines[:, :, LINES] = lower.swapaxes(2, 3).reshape(*q.shape[:2], GROUP)
    return np.concatenate([panels[:, :HEAD], lines.reshape(len(panels), -1)], axis=1)


def _joined(halves: NDArray[np.uint8]) -> NDArray[np.uint8]:
    joined: NDArray[np.uint8] = halves[:, :, :LINES] | halves[:, :, LINES:] << np.uint8(4)
    return joined


def decomposed(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return another A, (rank, k), and B, (rows, rank), of the same product, in the order of storage.

    The columns of B are orthogonal, of length TOP at rank rows 0, 8, 16 and so on, which have the largest singular
    values, and else of length 1. Rank is rounded up to a multiple of 8; what is added is zero.
    """
    left, upper = np.linalg.qr(b.astype(np.float64))
    right, lower = np.linalg.qr(a.T.astype(np.float64))
    u, values, v = np.linalg.svd(upper @ lower.T, full_matrices=False)
    rank, found = -(-len(a) // ROWS) * ROWS, len(values)
    is_top = _tops(rank)
    places = np.concatenate([np.flatnonzero(is_top), np.flatnonzero(~is_top)])[:found]
    lengths = np.where(is_top, TOP, 1.0)[places]
    rows, columns = np.zeros((rank, a.shape[1]), np.float32), np.zeros((len(b), rank), np.float32)
    with np.errstate(over="ignore"):  # infinity is refused by its name when it is packed
        rows[places] = (values / lengths)[:, None] * (v @ right.T)
        columns[:, places] = (left @ u) * lengths
    return rows, columns


def quantize_tails(values: Floats, a: Floats, out: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Round a B, (panels, rank, 16), into ``out`` and return its scales in bf16, (panels, 16).

    The error of a rank counts by the length of its row of ``a``.
    """
    weights = np.square(a, dtype=np.float64).sum(axis=1)
    weights = (weights / (weights.max(initial=0.0) or 1.0)).astype(np.float32)
    lanes = values.transpose(0, 2, 1)  # (panels, 16, rank)
    codes, scales = _rounded(lanes, weights[None, None, :], is_top=_tops(lanes.shape[2])[None, None, :], half=True)
    pack_b(np.ascontiguousarray(codes.transpose(0, 2, 1)), out)
    return to_bf16(scales)


def pack_b(q: NDArray[np.int8], out: NDArray[np.uint8]) -> None:
    """Lay out (panels, rank, 16), whose tails are in [-8, 7], in ``out``, (panels, blocks, 72)."""
    blocks = q.reshape(len(q), q.shape[1] // ROWS, ROWS, LANES)
    out[:, :, :LANES] = blocks[:, :, 0].view(np.uint8)
    tails = (blocks[:, :, 1:] + np.int8(8)).astype(np.uint8)
    halves = tails[..., : LANES // 2] | tails[..., LANES // 2 :] << 4
    out[:, :, LANES:] = halves.reshape(*blocks.shape[:2], BLOCK - LANES)


def _tops(rank: int) -> NDArray[np.bool_]:
    """Return which rank rows have 8 bits."""
    found: NDArray[np.bool_] = np.arange(rank) % ROWS == 0
    return found


def _rounded(
    values: Floats, weights: Floats, *, is_top: NDArray[np.bool_], half: bool = False
) -> tuple[NDArray[np.int8], Floats]:
    """Return codes, shaped as ``values``, and scales, one for the last axis, with the smallest weighted squared error.

    ``half``: scales are bf16 numbers.
    """
    most, least = np.where(is_top, np.float32(127), np.float32(7)), np.where(is_top, np.float32(-127), np.float32(-8))
    widest = (np.abs(values) / (most + np.float32(0.5))).max(axis=-1)
    widest = np.where(widest * np.float32(127.5) < SMALLEST, np.float32(0), widest)
    if not np.isfinite(widest).all():  # refused by its name where scales are stored
        return np.zeros(values.shape, np.int8), np.full(widest.shape, np.inf, np.float32)
    best = np.full(widest.shape, np.inf, np.float32)
    codes, scales = np.zeros(values.shape, np.int8), np.zeros(widest.shape, np.float32)
    for fraction in CLIPPED:
        scale: Any = widest * fraction
        scale = widened(to_bf16(scale)) if half else scale
        q = np.clip(np.rint(values * _inverse_of(scale)[..., None]), least, most)
        # Relative to the widest scale, so that squares of large and small values are finite.
        rest = (values - q * scale[..., None]) * _inverse_of(widest)[..., None]
        error = (rest * rest * weights).sum(axis=-1)
        is_better = error < best
        best = np.where(is_better, error, best)
        codes[is_better], scales[is_better] = q[is_better], scale[is_better]
    return codes, scales


def _inverse_of(scale: Floats) -> Floats:
    return np.where(scale > 0, np.float32(1) / np.where(scale > 0, scale, np.float32(1)), np.float32(0))
