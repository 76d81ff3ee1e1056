"""The time of a step, predicted by a cost model that learns from the steps that ran.

seconds = fixed + sum_i slope_i * rows_i + sampled * a + attended * b + adapters * c,    all of them >= 0

rows_i is the part of the step's rows that lies between two knots: a few rows are bound by memory, which reads the
weights once for all of them, many rows by arithmetic. attended: positions that all rows together attend to. adapters:
ranges of rows with different adapters. The coefficients minimise the squared relative error over the latest steps of
each size, so that long steps do not dominate short ones. (Vidur, arXiv 2405.05465, shows that such a model suffices
for planning; Sarathi-Serve, arXiv 2403.02310, the effect of bounded chunks on decoding.)
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KNOTS = (1, 4, 16, 64)
"""Row counts at which the slope may change."""

KEPT = 64
"""Steps remembered for each size."""

REFIT = 512
"""Steps between two fits of the coefficients; fewer in the beginning."""

KNOWN = 8
"""Steps of a size from which on its predictions are trusted."""

KEPT_SHARE = 0.98
"""Share of the latest steps with prompts that ``margin`` covers."""

FIRST_MARGIN = 1.3
"""Margin until ``KNOWN`` such steps were observed."""

MOST_MARGIN = 1.4
"""Largest margin; a machine on which steps vary more is too busy for shorter steps to help."""

_SIZES = len(KNOTS) + 1
_GIVEN = 1 << 30


class StepShape(NamedTuple):
    """The quantities that the cost of a step depends on."""

    rows: int
    sampled: int
    """Rows whose logits are computed."""
    attended: int
    """Positions that all rows together attend to."""
    adapters: int = 0
    """Ranges of rows that use adapters."""


class CostModel:
    """Predicts the seconds of a step; before the first fit it predicts nothing."""

    def __init__(self, coefficients: Mapping[str, float] | None = None) -> None:
        """Start without knowledge, or with the ``coefficients`` of another model."""
        self._samples: tuple[deque[tuple[float, ...]], ...] = tuple(deque(maxlen=KEPT) for _ in range(_SIZES))
        self._fitted = [0] * _SIZES  # steps of each size at the latest fit
        self._largest = 0  # rows of the largest observed step
        self._errors: deque[float] = deque(maxlen=KEPT)  # seconds over predicted ones of steps with prompts
        self._margin = FIRST_MARGIN
        self._new, self._refit = 0, 4
        self._weights: list[float] = []
        if coefficients is not None:
            self._weights = [float(coefficients[name]) for name in self.names]
            self._margin = 1.0
            self._largest = _GIVEN

    names = ("fixed", *(f"rows_from_{low}" for low in (0, *KNOTS)), "sampled", "attended", "adapters")
    """Of the coefficients."""

    @property
    def is_fitted(self) -> bool:
        """Whether there are coefficients to predict with."""
        return bool(self._weights)

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds by name; empty before the first fit."""
        return dict(zip(self.names, self._weights, strict=False))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took ``seconds``."""
        if seconds <= 0.0:
            return
        if shape.rows > shape.sampled and self.knows(shape.rows) and (predicted := self.seconds(shape)) > 0.0:
            self._errors.append(seconds / predicted)
        self._samples[bisect_left(KNOTS, shape.rows)].append((*shape, seconds))
        if shape.rows > self._largest:
            self._largest = shape.rows
        self._new += 1
        if self._new >= self._refit:
            self._refit = min(2 * self._refit, REFIT)
            self.fit()

    @property
    def until_fit(self) -> int:
        """Steps to observe until the next fit."""
        return self._refit - self._new

    @property
    def margin(self) -> float:
        """Factor by which predictions are to be multiplied so that nearly all steps with prompts take less."""
        return self._margin

    def knows(self, rows: int) -> bool:
        """Return whether steps of about so many rows are part of the fit, or given coefficients describe them."""
        return self._largest == _GIVEN or self._fitted[bisect_left(KNOTS, rows)] >= KNOWN

    def fit(self) -> None:
        """Fit the coefficients, and the margin, to the remembered steps."""
        samples = np.array([sample for size in self._samples for sample in size])
        self._new = 0
        self._fitted = [len(size) for size in self._samples]
        if len(samples):
            self._weights = _fit(_features(samples), samples[:, -1])
        if len(self._errors) >= KNOWN:
            covering = sorted(self._errors)[int(KEPT_SHARE * len(self._errors))]
            self._margin = min(max(1.0, covering), MOST_MARGIN)

    def seconds(self, shape: StepShape) -> float:
        """Return the predicted seconds of a step; 0 before the first fit."""
        weights = self._weights
        if not weights:
            return 0.0
        total, low = weights[0], 0
        for index, high in enumerate((*KNOTS, shape.rows)):
            total += weights[1 + index] * max(0, min(high, shape.rows) - low)
            low = high
        a, b, c = weights[-3:]
        return total + a * shape.sampled + b * shape.attended + c * shape.adapters

    def rows_within(self, seconds: float, shape: StepShape, position: int, most: int) -> int:
        """Return how many rows of one prompt, from ``position`` on, may join a step with a limit of ``seconds``.

        Their last one is not counted as sampled. The result is at most ``most``, which is also the answer before the
        first fit, and at most double the largest observed step, beyond which predictions are unreliable.
        """
        if not self._weights:
            return most
        most = min(most, max(0, 2 * self._largest + 2 * KNOTS[2] - shape.rows))
        attended = self._weights[-2]
        left, rows = seconds - self.seconds(shape), 0
        for slope, edge in zip(self._weights[1 : 1 + _SIZES], (*KNOTS, shape.rows + most), strict=True):
            width = min(edge - shape.rows, most) - rows
            if width <= 0 or left <= 0.0:
                continue
            each = slope + attended * (position + rows + 0.5)  # n rows here cost slope * n + attended * n^2 / 2
            whole = width * (each + attended * width / 2)
            if whole > left:
                root = math.sqrt(each * each + 2 * attended * left)
                width, whole = int(2 * left / (each + root)), left
            rows, left = rows + width, left - whole
        return rows

    def prompt_seconds(self, tokens: int, chunk: int) -> float:
        """Return the seconds of prompts with ``tokens`` in total, alone, in steps of ``chunk`` rows."""
        if tokens <= 0:
            return 0.0
        steps = -(-tokens // chunk)
        rows = -(-tokens // steps)
        return steps * self.seconds(StepShape(rows, 1, rows * rows // 2))


def _features(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors of the coefficients, (steps, coefficients), of steps whose columns are a StepShape's."""
    rows, edges = steps[:, 0], (0, *KNOTS, np.inf)
    parts = [np.clip(rows, low, high) - low for low, high in itertools.pairwise(edges)]
    return np.column_stack([np.ones(len(steps)), *parts, steps[:, 1:4]])


def _fit(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[float]:
    """Return w >= 0 that minimises sum ((x w - y) / y)^2, without disturbed steps."""
    kept = np.ones(len(y), bool)
    weights = np.zeros(x.shape[1])
    for _ in range(2):
        weights = _non_negative(x[kept] / y[kept, None])
        error = np.abs(x @ weights / y - 1.0)
        kept = error <= max(3.0 * float(np.median(error)), 0.05)
    return [float(weight) for weight in weights]


def _non_negative(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return w >= 0 with small |x w - 1|^2: least squares, dropping the most negative coefficient repeatedly.

    A penalty draws slopes of neighbouring sizes together, so that sizes without steps get their neighbour's slope.
    """
    scale = np.sqrt((x * x).sum(axis=0))
    scale[1 : 1 + _SIZES] = scale[1 : 1 + _SIZES].max()
    scale[scale == 0.0] = 1.0
    x = x / scale
    gram = x.T @ x + 1e-9 * np.eye(len(scale))
    for i in range(1, _SIZES):
        gram[i : i + 2, i : i + 2] += 1e-3 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    target = x.sum(axis=0)
    kept = np.arange(len(scale))
    while True:
        w = np.linalg.solve(gram[np.ix_(kept, kept)], target[kept])
        if len(kept) == 1 or w.min() >= 0.0:
            break
        kept = np.delete(kept, w.argmin())
    found: NDArray[np.float64] = np.zeros(len(scale))
    found[kept] = np.maximum(w, 0.0) / scale[kept]
    return found
