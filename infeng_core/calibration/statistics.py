"""What the inputs of every linear op are like: H = X'X / n of calibration text, gathered while a model is converted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.calibration.forward import Forward, quantized
from infeng_core.formats.quant import QuantFormat
from infeng_core.formats.tensors import PackedTensor
from infeng_core.models.config import ModelConfig

BLOCK = 512  # columns that are mirrored at a time
ROWS = 256  # the native sums are cut at multiples of it


@dataclass
class Statistics:
    """Gathers H of one tensor after the other, each behind the tensors that are packed already.

    ``start`` makes the pass over the text for a model's shape, once a conversion knows it.
    """

    start: Callable[[ModelConfig], Forward]
    threads: int

    def begin(self, model: ModelConfig) -> None:
        """Start over, for a model of this shape."""
        self._forward = self.start(model)

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all of them come before the first tensor."""
        self._forward.vectors[name] = values.copy()

    def of(self, tensor: str, format: QuantFormat) -> NDArray[np.float64] | None:
        """Return H, (k, k) symmetric, of what ``tensor`` multiplies in ``format``; None for one that is looked up."""
        inputs = self._forward.inputs(tensor)
        return None if inputs is None else moments(inputs, format, self.threads)

    def put(self, tensor: PackedTensor) -> None:
        """Take a tensor as it will be served; its memory may change afterwards."""
        self._forward.put(tensor)


def moments(inputs: Sequence[NDArray[np.float32]], format: QuantFormat, threads: int) -> NDArray[np.float64]:
    """Return X'X / n, (k, k) symmetric float64, of the rows X that kernels make of all ``inputs``, each (tokens, k).

    Products are summed in blocks of 256 rows, whatever the lengths of the texts and the number of threads.
    """
    k, total = inputs[0].shape[1], sum(len(rows) for rows in inputs)
    h = np.zeros((k, k))
    rest = np.empty((0, k), np.float32)
    for rows in inputs:
        read = rows if format.is_float else quantized(rows, format.group, is_rotated=format.is_rotated)
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
