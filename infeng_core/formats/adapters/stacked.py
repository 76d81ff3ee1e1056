"""A of the projections that share an input: their rank rows stacked in panels of 16 of a weight format.

A last panel of 8 rows or fewer would mostly hold zeros, so it is folded: a panel over half of the inputs, rounded up
to a group. Lanes 0 to 7 hold the rows' first half, lanes 8 to 15 the rest.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.models.weights import PANEL_ROWS

GROUP = 64
HALF = PANEL_ROWS // 2
Floats = NDArray[np.float32]


class PanelFormat(Protocol):
    """The part of ``QuantFormat`` that an A needs."""

    @property
    def name(self) -> str:
        """The name in error messages."""

    def panel_bytes(self, k: int) -> int:
        """Return the bytes of one panel over ``k`` inputs, a multiple of 64."""


def stacked_panels(rank: int) -> tuple[int, bool]:
    """Return how many whole panels hold ``rank`` rows, and whether a folded one follows."""
    whole, rest = divmod(rank, PANEL_ROWS)
    return (whole, True) if 0 < rest <= HALF else (whole + (rest > 0), False)


def folded_inputs(k: int) -> int:
    """Return the number of inputs of the folded panel for rows of ``k`` inputs."""
    return -(-k // (2 * GROUP)) * GROUP


def stacked_bytes(format: PanelFormat, rank: int, k: int) -> int:
    """Return the bytes of ``rank`` rows of ``k`` inputs."""
    whole, is_folded = stacked_panels(rank)
    return whole * format.panel_bytes(k) + (format.panel_bytes(folded_inputs(k)) if is_folded else 0)


def int8_scales(format: PanelFormat, a: NDArray[np.uint8], rank: int, k: int) -> Floats:
    """Return the scales at the heads of all panels of int8-row or int8t4."""
    whole, is_folded = stacked_panels(rank)
    heads = [a[i * format.panel_bytes(k) :][: 4 * PANEL_ROWS] for i in range(whole + is_folded)]
    return np.concatenate(heads).view(np.float32)
