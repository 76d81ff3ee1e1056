"""Second moments of every linear op's inputs, H = X'X / n of calibration text, gathered during a conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from infeng_convert.api import Checkpoint, Moments, Seen, is_inner, pack_tensor
from numpy.typing import NDArray

from infeng_calibrate import _native
from infeng_calibrate.forward import Forward, quantized
from infeng_calibrate.routing import Routed
from infeng_calibrate.store import release
from infeng_core.api.formats import (
    ModelConfig,
    PackedTensor,
    QuantFormat,
    aligned_bytes,
    builtin_format,
    rotated_inputs,
)

BLOCK = 512  # columns that are mirrored at a time
ROWS = 2048  # rows per call of the native sums, whose blocks end at its multiples
FEW = 128  # an expert with fewer rows has no statistic of its own
INNER, OUTER = builtin_format("int8-row"), builtin_format("bf16")  # formats of the reference model: layers, and others

Rows = Sequence[NDArray[np.float32]]
"""A value of each step, (tokens, columns)."""


@dataclass
class Statistics:
    """Gathers the statistics of one tensor after the other, from a pass through the tensors already packed.

    ``start`` makes the pass over the text for a model's shape, once a conversion knows it. ``aims``: a second pass goes
    through a reference model with layers in eight bits, unless the model has experts: its rows might go to others.
    """

    start: Callable[[ModelConfig], Forward]
    threads: int
    aims: bool = False
    few_rows: dict[str, int] = field(default_factory=dict)
    """The number of experts of a tensor that got fewer than FEW rows of the text."""
    _beside: Forward | None = field(default=None, repr=False)

    def begin(self, checkpoint: Checkpoint) -> None:
        """Reset the statistics for this model."""
        self._checkpoint = checkpoint
        self._specs = {spec.name: spec for spec in checkpoint.layout.tensors}
        self._forward, self._beside = self.start(checkpoint.config), None
        self._asked = ""  # the latest tensor passed to ``of``
        if self.aims and not self._forward.has_experts:
            self._beside = self.start(checkpoint.config)
            self._beside.vectors, self._beside.store = self._forward.vectors, self._forward.store
        self.few_rows.clear()

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all vectors precede the first tensor."""
        self._forward.vectors[name] = values.copy()

    def of(self, tensor: str, format: QuantFormat) -> Moments:
        """Return a function from an expert to the statistics of its inputs of ``tensor`` in ``format``.

        A tensor without experts counts as expert 0. The function returns None for a tensor of no linear op.
        """
        inputs, self._asked = self._forward.inputs(tensor), tensor
        if inputs is None:
            return lambda expert: None
        if isinstance(inputs, Routed):
            self._count(tensor, inputs)
            return _OfExperts(inputs, format, self.threads)
        exact = None if self._beside is None else self._beside.inputs(tensor)
        assert not isinstance(exact, Routed)
        seen = Seen(*sums(inputs, format, exact, self.threads))
        return lambda expert: seen

    def put(self, tensor: PackedTensor) -> None:
        """Take a packed tensor of the converted model; its memory may change afterwards."""
        if tensor.name != self._asked:  # it was packed by an interrupted conversion that this one continues
            inputs = self._forward.inputs(tensor.name)
            if isinstance(inputs, Routed):
                self._count(tensor.name, inputs)
        self._forward.put(tensor)
        if self._beside is not None and self._beside.is_wanted(tensor.name):
            self._beside.put(self._exact(tensor.name))

    def _exact(self, name: str) -> PackedTensor:
        """Return a tensor of the reference model."""
        spec = self._specs[name]
        format = INNER if is_inner(name) else OUTER
        nbytes = format.panel_bytes(spec.k)
        out = aligned_bytes(spec.panels * nbytes)
        pack_tensor(spec, self._checkpoint, format, out, self.threads)
        return PackedTensor(name, format.name, spec.n, spec.k, spec.panels, nbytes, out, 0, format)

    def _count(self, tensor: str, inputs: Routed) -> None:
        """Record the number of a tensor's experts with few rows."""
        if few := int((inputs.counts < FEW).sum()):
            self.few_rows[tensor] = few


class _OfExperts:
    """H of one expert after another.

    An expert with few rows has the H of all rows of its layer. If earlier ops of the experts computed the inputs, it
    has none: a column means something else in each expert.
    """

    def __init__(self, routed: Routed, format: QuantFormat, threads: int) -> None:
        self._routed, self._format, self._threads = routed, format, threads
        self._counts = routed.counts
        self._latest: tuple[int, Seen | None] = (-1, None)
        self._of_all: NDArray[np.float64] | None = None

    def __call__(self, expert: int) -> Seen | None:
        if self._latest[0] != expert:  # gate and up of an expert share one statistic
            self._latest = (-1, None)
            found = self._found(expert)
            self._latest = (expert, None if found is None else Seen(found))
        return self._latest[1]

    def _found(self, expert: int) -> NDArray[np.float64] | None:
        if self._counts[expert] >= FEW:
            return moments(self._routed.of(expert), self._format, self._threads)
        if self._of_all is None and not self._routed.by_experts:
            self._of_all = moments(self._routed.inputs, self._format, self._threads)
        return self._of_all


def as_read(rows: NDArray[np.float32], format: QuantFormat, threads: int) -> NDArray[np.float32]:
    """Return inputs, (tokens, k), as kernels quantize them for a weight in ``format``; in place."""
    if format.is_float:
        return rows
    return quantized(rows, format.group, rotation=format.rotation(rows.shape[1]), threads=threads, out=rows)


def moments(inputs: Rows, format: QuantFormat, threads: int) -> NDArray[np.float64]:
    """Return X'X / n, (k, k) symmetric float64, X being all ``inputs``, (tokens, k) each, as kernels quantize them."""
    return sums(inputs, format, None, threads)[0]


def sums(
    inputs: Rows, format: QuantFormat, exact: Rows | None, threads: int
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return the ``moments`` of X, and (Y - X)'X / n, (k, k) float64, for the rows Y of ``exact``; None without them.

    The blocks of rows of these sums do not depend on the lengths of the steps or the number of threads.
    """
    k, total = inputs[0].shape[1], sum(len(rows) for rows in inputs)
    h, crossed = np.zeros((k, k)), None if exact is None else np.zeros((k, k))
    for rows, *others in _blocks(inputs) if exact is None else _blocks(inputs, exact):
        x = as_read(rows, format, threads)
        _native.add_gram(x, h, threads)
        if crossed is not None:
            y = rotated_inputs(others[0], format.rotation(k)) if format.is_rotated else others[0]
            _native.add_cross(np.subtract(y, x, out=others[0]), x, crossed, threads)
    for begin in range(0, k, BLOCK):  # in place: h is the largest array of a conversion
        end = begin + BLOCK
        h[end:, begin:end] = h[begin:end, end:].T
        square = np.triu(h[begin:end, begin:end])
        h[begin:end, begin:end] = square + np.triu(square, 1).T
    h /= total
    if crossed is not None:
        crossed /= total
    return h, crossed


def _blocks(*values: Rows) -> Iterator[list[NDArray[np.float32]]]:
    """Yield the rows of all steps, ROWS at a time and the rest at last, in memory that every block reuses."""
    total = sum(map(len, values[0]))
    room = [np.empty((min(ROWS, total), rows[0].shape[1]), np.float32) for rows in values]
    held = 0
    for steps in zip(*values, strict=True):
        begin = 0
        while begin < len(steps[0]):
            count = min(ROWS - held, len(steps[0]) - begin)
            for to, rows in zip(room, steps, strict=True):
                to[held : held + count] = rows[begin : begin + count]
            begin, held = begin + count, held + count
            if held == ROWS:
                yield room
                held = 0
        for rows in steps:
            release(rows)
    if held:
        yield [rows[:held] for rows in room]
