"""A quantizer: each group gets the range that costs it least.

``infeng convert MODEL DEST --format int4-g64 --quantizer clip`` uses it.

A range that cuts off a group's largest value rounds all others more finely. For w the weights of a group, s its scale,
q its codes and h the importance of its inputs (1, or the diagonal of H = X'X / n): minimise sum h (w - s q)^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from infeng_convert.api import Quantized, QuantTarget
from numpy.typing import NDArray

from infeng_core.api import hookimpl
from infeng_core.api.formats import Grid

Floats = NDArray[np.float32]
AT_ONCE = 1 << 20  # weights, so that what is needed beside the matrix stays small


class Clip:
    """Tries ``ranges`` ranges on either side of zero, then the scale that fits the best one's codes."""

    def __init__(self, ranges: int) -> None:
        """Take the settings."""
        self._shares = np.linspace(0.6, 1.1, ranges, dtype=np.float32)  # of the range that holds the largest value

    def quantize(self, weights: Floats, target: QuantTarget) -> Quantized | None:
        """Return codes (n, k) and scales (n, groups); None for values too large, which the core names."""
        (n, k), size = weights.shape, target.grid.group
        groups = target.grid.groups(k)
        importance = np.zeros(groups * size, np.float32)
        importance[:k] = 1 if target.statistic is None else target.statistic.diagonal()
        codes, scales = np.empty((n, k), np.int8), np.empty((n, groups), np.float32)
        rows = max(1, AT_ONCE // k)
        for first in range(0, n, rows):
            part = weights[first : first + rows]
            grouped = np.pad(part, ((0, 0), (0, groups * size - k))).reshape(-1, groups, size)
            q, scale = self._fit(grouped, importance.reshape(groups, size), target.grid)
            codes[first : first + rows] = q.reshape(len(part), -1)[:, :k]
            scales[first : first + rows] = scale
        return Quantized(codes, scales) if np.isfinite(scales).all() else None

    def _fit(self, w: Floats, h: Floats, grid: Grid) -> tuple[Floats, Floats]:
        """Return codes, (rows, groups, size), and scales, (rows, groups)."""
        best, least = np.full((2, *w.shape[:2]), np.inf, np.float32)
        at = np.abs(w).argmax(-1, keepdims=True)
        extreme = np.take_along_axis(w, at, -1)[..., 0]  # with its sign: a scale may be negative

        def consider(wanted: Floats) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # no error is less than another if a scale is infinite
                scale = wanted.astype(grid.scale).astype(np.float32)
                error = (h * (w - scale[..., None] * _codes(w, scale, grid)) ** 2).sum(-1)
            better = error < least
            best[better], least[better] = scale[better], error[better]

        for end in (grid.low, grid.high):
            for share in self._shares:
                consider(extreme * share / np.float32(end))
        q = _codes(w, best, grid)
        norm = (h * q * q).sum(-1)
        consider(np.where(norm > 0, (h * w * q).sum(-1) / np.where(norm > 0, norm, 1), best))
        return _codes(w, best, grid), best


def _codes(w: Floats, scale: Floats, grid: Grid) -> Floats:
    inverse = np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale))  # a scale of 0 gives codes of 0
    return np.clip(np.rint(w * inverse[..., None]), grid.low, grid.high)


@hookimpl(optionalhook=True)
def infeng_quantizers(settings: Mapping[str, Any]) -> dict[str, Clip]:
    """Return the quantizer."""
    return {"clip": Clip(settings["ranges"])}
