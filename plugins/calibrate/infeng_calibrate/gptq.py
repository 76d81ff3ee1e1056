"""The quantizer ``gptq``: each column of weights compensates the errors of the columns rounded before it.

GPTQ (Frantar et al. 2022) in the form of LDLQ (QuIP, Chee et al. 2023): errors propagate by the factors of H itself, so
no inverse is needed. Scales are chosen first, group by group in the original order ("static groups"). In formats with
sub-scales, coordinate descent chooses scales and codes again when all codes are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from infeng_convert.api import Quantized, QuantTarget
from numpy.typing import NDArray

from infeng_calibrate import _native
from infeng_core.api.formats import SubGrid

DAMPING = 0.01  # this part of the mean of H's diagonal is added to the diagonal
SWEEPS = 2  # over the groups of a matrix, when all of its codes are known


@dataclass
class Gptq:
    """Chooses codes by a statistic; a matrix without a statistic is left to the built-in rounding."""

    needs_statistics = True
    knows_sub_scales = True
    aims = True  # weights correct the drift of their inputs
    rules = 5  # raised with every change of the codes that it chooses; part of an artifact's identity
    identity = "core", "1"  # older than this wheel; kept, so that earlier artifacts keep their identity

    threads: int = 2
    _last: tuple[NDArray[np.float64], _Factored] | None = field(default=None, repr=False)

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        """Return the codes and scales of ``weights``, (n, k), with the least loss on inputs as ``target.statistic``."""
        if target.statistic is None:
            return None
        factored, grid = self._factored(target.statistic), target.grid
        weights = np.ascontiguousarray(weights, np.float32)
        if target.drift is not None:
            weights = _native.aim(weights, target.drift, factored.order, factored.factors, self.threads)
        if grid.sub is not None:
            return self._sub_scaled(weights, target.statistic, factored, grid.high, grid.sub)
        group, low, high = grid.group, grid.low, grid.high
        half = grid.scale == np.float16
        scales = _native.choose_scales(weights, factored.costs, group, low, high, half, self.threads)
        lowest, highest = np.full(scales.shape, low, np.int8), np.full(scales.shape, high, np.int8)
        codes = _native.choose_codes(
            weights, factored.order, factored.factors, scales, lowest, highest, group, self.threads
        )
        return Quantized(codes, scales)

    def _sub_scaled(
        self, weights: NDArray[np.float32], statistic: NDArray[np.float64], factored: _Factored, most: int, sub: SubGrid
    ) -> Quantized:
        """Choose d, s and z by rounding error; then codes u by H; then s, z and u group by group; at last d again."""
        bits, k = most.bit_length(), weights.shape[1]
        statistic = np.ascontiguousarray(statistic)
        d, s, z = _native.choose_sub_scales(weights, factored.costs, bits, self.threads)
        wide, zero = s.astype(np.int32), z.astype(np.int32)
        lowest = np.maximum(-zero, -(-sub.lowest // wide)).astype(np.int8)  # of u - z
        highest = np.minimum(most - zero, sub.highest // wide).astype(np.int8)
        chosen = _native.choose_codes(
            weights, factored.order, factored.factors, d * s, lowest, highest, sub.group, self.threads
        )
        for _ in range(SWEEPS):
            _native.descend(weights, statistic, factored.damping, d, s, z, chosen, bits, self.threads)
        integers = chosen * np.repeat(s, sub.group, axis=1)[:, :k]
        _native.refit_scales(weights, integers, statistic, d, self.threads)
        return Quantized(chosen + np.repeat(z, sub.group, axis=1)[:, :k], d, z, s)

    def _factored(self, statistic: NDArray[np.float64]) -> _Factored:
        """Return the factors of H, kept for the next matrix: q, k and v have the same inputs."""
        if self._last is None or self._last[0] is not statistic:
            self._last = None
            self._last = statistic, _Factored.of(statistic, self.threads)
        return self._last[1]


@dataclass(frozen=True)
class _Factored:
    """Values that depend on H alone."""

    damping: float
    costs: NDArray[np.float64]  # (k,) the diagonal of H, damped
    order: NDArray[np.int32]  # (k,) the inputs by descending cost, ties by index
    factors: NDArray[np.float64]  # (k, k) lower: L and D, the last input of the order first

    @staticmethod
    def of(statistic: NDArray[np.float64], threads: int) -> _Factored:
        diagonal = np.diag(statistic)
        mean = float(np.mean(diagonal))
        damping = DAMPING * mean if mean > 0 else 1.0  # an op whose inputs are all 0 loses nothing by any code
        costs = diagonal + damping
        order = np.argsort(-costs, kind="stable").astype(np.int32)
        last_first = order[::-1]
        factors = statistic[np.ix_(last_first, last_first)]
        factors[np.diag_indices_from(factors)] += damping
        _native.factor(factors, threads)
        return _Factored(damping, costs, order, factors)
