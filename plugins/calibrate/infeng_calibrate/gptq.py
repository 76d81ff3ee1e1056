"""The quantizer ``gptq``: each column of weights makes up for the errors of those that were rounded before it.

GPTQ (Frantar et al. 2022) in the form of LDLQ (QuIP, Chee et al. 2023): the factors of H itself say how an error is
passed on, no inverse is needed. Scales are chosen before, group by group in the original order ("static groups"); those
of formats with sub-scales, and the codes under them, once more when all codes are known (coordinate descent).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from infeng_calibrate import _native
from infeng_core.api.formats import Quantized, QuantTarget, SubGrid

DAMPING = 0.01  # of the mean of H's diagonal, added to all of it
SWEEPS = 2  # over the groups of a matrix, when all of its codes are known


@dataclass
class Gptq:
    """Chooses codes by a statistic; a matrix without one is left to the built-in rounding."""

    needs_statistics = True
    knows_sub_scales = True
    aims = True  # at what the model beside makes of its own inputs
    rules = 5  # counts changes of what it chooses of the same matrix, for the identity of what is made
    identity = "core", "1"  # that it has had since before this wheel: what was converted stays what it is

    threads: int = 2
    _last: tuple[NDArray[np.float64], _Factored] | None = field(default=None, repr=False)

    def quantize(self, weights: NDArray[np.float32], target: QuantTarget) -> Quantized | None:
        """Return codes and scales of ``weights``, (n, k), that lose least on the inputs of ``target.statistic``."""
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
        """Choose d, s and z for their own rounding, codes u under them, s, z and u given all others, d once more."""
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
        """Return the factors of H, kept for the next matrix: q, k and v read the same."""
        if self._last is None or self._last[0] is not statistic:
            self._last = None
            self._last = statistic, _Factored.of(statistic, self.threads)
        return self._last[1]


@dataclass(frozen=True)
class _Factored:
    """What follows from H alone."""

    damping: float
    costs: NDArray[np.float64]  # (k,) its diagonal, damped
    order: NDArray[np.int32]  # (k,) the inputs, those that count most first, ties by index
    factors: NDArray[np.float64]  # (k, k) lower: L and D, the last input of the order first

    @staticmethod
    def of(statistic: NDArray[np.float64], threads: int) -> _Factored:
        diagonal = np.diag(statistic)
        mean = float(np.mean(diagonal))
        damping = DAMPING * mean if mean > 0 else 1.0  # an op that reads nothing but zeros: every code is as good
        costs = diagonal + damping
        order = np.argsort(-costs, kind="stable").astype(np.int32)
        last_first = order[::-1]
        factors = statistic[np.ix_(last_first, last_first)]
        factors[np.diag_indices_from(factors)] += damping
        _native.factor(factors, threads)
        return _Factored(damping, costs, order, factors)
