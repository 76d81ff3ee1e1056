"""What the inputs of every linear op are like: H = X'X / n of calibration text, gathered while a model is converted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.calibration.forward import Forward, quantized
from infeng_core.calibration.routing import Routed
from infeng_core.formats.quant import QuantFormat
from infeng_core.formats.quantizers import Moments
from infeng_core.formats.tensors import PackedTensor
from infeng_core.models.config import ModelConfig

BLOCK = 512  # columns that are mirrored at a time
ROWS = 256  # the native sums are cut at multiples of it
FEW = 128  # rows, fewer say too little of what an expert reads


@dataclass
class Statistics:
    """Gathers H of one tensor after the other, each behind the tensors that are packed already.

    ``start`` makes the pass over the text for a model's shape, once a conversion knows it.
    """

    start: Callable[[ModelConfig], Forward]
    threads: int
    few_rows: dict[str, int] = field(default_factory=dict)
    """How many experts of a tensor got fewer than FEW rows of the text."""

    def begin(self, model: ModelConfig) -> None:
        """Start over, for a model of this shape."""
        self._forward = self.start(model)
        self._asked = ""  # the latest tensor that somebody wanted H of
        self.few_rows.clear()

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all of them come before the first tensor."""
        self._forward.vectors[name] = values.copy()

    def of(self, tensor: str, format: QuantFormat) -> Moments:
        """Return what gives H, (k, k) symmetric, of what an expert's part of ``tensor`` multiplies in ``format``.

        A tensor without experts has the one H of expert 0; one that is only looked up has none.
        """
        inputs, self._asked = self._forward.inputs(tensor), tensor
        if inputs is None:
            return lambda expert: None
        if isinstance(inputs, Routed):
            self._count(tensor, inputs)
            return _OfExperts(inputs, format, self.threads)
        h = moments(inputs, format, self.threads)
        return lambda expert: h

    def put(self, tensor: PackedTensor) -> None:
        """Take a tensor as it will be served; its memory may change afterwards."""
        if tensor.name != self._asked:  # it was made before, by a conversion that this one continues
            inputs = self._forward.inputs(tensor.name)
            if isinstance(inputs, Routed):
                self._count(tensor.name, inputs)
        self._forward.put(tensor)

    def _count(self, tensor: str, inputs: Routed) -> None:
        """Note how many experts of a tensor get few rows."""
        if few := int((inputs.counts < FEW).sum()):
            self.few_rows[tensor] = few


class _OfExperts:
    """H of one expert after another.

    One that few rows go to has the H of all rows of its layer; of the rows that experts have made there is no such H,
    for what their columns mean is each expert's own.
    """

    def __init__(self, routed: Routed, format: QuantFormat, threads: int) -> None:
        self._routed, self._format, self._threads = routed, format, threads
        self._counts = routed.counts
        self._latest: tuple[int, NDArray[np.float64] | None] = (-1, None)
        self._of_all: NDArray[np.float64] | None = None

    def __call__(self, expert: int) -> NDArray[np.float64] | None:
        if self._latest[0] != expert:  # gate and up ask for the same
            self._latest = (-1, None)
            self._latest = (expert, self._found(expert))
        return self._latest[1]

    def _found(self, expert: int) -> NDArray[np.float64] | None:
        if self._counts[expert] >= FEW:
            return moments(self._routed.of(expert), self._format, self._threads)
        if self._of_all is None and not self._routed.by_experts:
            self._of_all = moments(self._routed.inputs, self._format, self._threads)
        return self._of_all


def moments(inputs: Sequence[NDArray[np.float32]], format: QuantFormat, threads: int) -> NDArray[np.float64]:
    """Return X'X / n, (k, k) symmetric float64, of the rows X that kernels make of all ``inputs``, each (tokens, k).

    Products are summed in blocks of 256 rows, whatever the lengths of the texts and the number of threads.
    """
    k, total = inputs[0].shape[1], sum(len(rows) for rows in inputs)
    h = np.zeros((k, k))
    rest = np.empty((0, k), np.float32)
    for rows in inputs:
        read = rows
        if not format.is_float:
            read = quantized(rows, format.group, is_rotated=format.is_rotated, threads=threads)
        rest = np.concatenate([rest, read])
        whole = len(rest) // ROWS * ROWS
        if whole:
            _native.add_gram(np.ascontiguousarray(rest[:whole]), h, threads)
            rest = rest[whole:]
    if len(rest):
        _native.add_gram(np.ascontiguousarray(rest), h, threads)
    for begin in range(0, k, BLOCK):  # in place: h is the largest array of a conversion
        end = begin + BLOCK
        h[end:, begin:end] = h[begin:end, end:].T
        square = np.triu(h[begin:end, begin:end])
        h[begin:end, begin:end] = square + np.triu(square, 1).T
    h /= total
    return h
