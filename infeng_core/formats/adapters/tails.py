"""The storage ``int8t4``: of each 8 rank rows one in 8 bits, 7 in 4 bits (``infeng_lora_segment`` in abi.h).

Its numbers are those of int8, of which the tails are in [-8, 7]; only the bytes are fewer, 9 for 16 of A and of B. The
rows that matter most are put where 8 bits are, at rank rows 0, 8, 16 and so on; ranks are padded to multiples of 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core.formats.quant import BUILTIN

ROWS = 8
"""Rank rows that are stored together; the first of them has 8 bits."""

LANES = 16
HEAD = 64  # bytes of the scales before a panel's lines
GROUP = 64  # inputs
LINES = 8  # of nibbles in a group; one with the lower bits of lanes 0 and 8 follows
BLOCK = LANES + (ROWS - 1) * LANES // 2
"""Bytes of 8 rank rows of a panel of B."""

ZERO = 120  # from q + 8 to q + 128
Bytes = NDArray[np.uint8]


class Tails:
    """The panels of an A, which weight formats describe by the same names: see ``QuantFormat``."""

    name = "int8t4"

    def panel_bytes(self, k: int) -> int:
        """Return the bytes of one panel over ``k`` inputs."""
        return HEAD + -(-k // GROUP) * (LINES + 1) * GROUP

    def unpack(self, a: Bytes, offset: int, panels: int, k: int) -> NDArray[np.float32]:
        """Return the rows of ``panels`` panels, (panels * 16, k) float32."""
        used = a[offset : offset + panels * self.panel_bytes(k)].reshape(panels, -1)
        return BUILTIN["int8-row"].unpack(expanded(used), 0, panels, k)


def expanded(panels: Bytes) -> Bytes:
    """Return panels, (panels, bytes), as panels of int8-row."""
    lines = panels[:, HEAD:].reshape(len(panels), -1, LINES + 1, GROUP)
    nibbles = _halves(lines[:, :, :LINES].reshape(*lines.shape[:2], LINES, LANES, 4))  # (panels, groups, 16, 16, 4)
    lower = _halves(lines[:, :, LINES].reshape(*lines.shape[:2], 2, LINES, 4).swapaxes(2, 3))  # (..., 16, 2, 4)
    out = nibbles + np.uint8(ZERO)
    out[..., ::ROWS, :] = nibbles[..., ::ROWS, :] << 4 | lower
    return np.concatenate([panels[:, :HEAD], out.reshape(len(panels), -1)], axis=1)


def _halves(both: Bytes) -> Bytes:
    """Return the lower halves of bytes and behind them, along the third axis, the upper ones."""
    return np.concatenate([both & np.uint8(15), both >> 4], axis=2)
