"""What adapters do to the rows of a batch, written down from the mathematics.

A linear's product y = x W^T becomes (y + weight * scaling * (x A^T) B^T) * row_scale + bias on the rows of an adapter,
before the linear's own bias; modules that were trained whole (embedding, head, norms) take the place of the model's.

Sources: Hu et al., "LoRA" (2021); Kalajdzievski (2023) for rsLoRA's scaling; Liu et al., "DoRA" (2024), in which
row_scale is the learned magnitude of each row of W + scaling * B A over the norm that the row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rounding import PLAIN, Rounding, round_activations

if TYPE_CHECKING:
    from .llama import Linear

Real = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Change:
    """What an adapter does to one linear; with rank 0 only its scale and bias."""

    a: Real  # (rank, inputs); of an embedding (rank, vocab)
    b: Real  # (outputs, rank)
    scaling: Real  # (rank,)
    row_scale: Real | None = None  # (outputs,)
    bias: Real | None = None  # (outputs,)
    int8_input: bool = False  # A's kernel reads int8 activations
    rounding: Rounding = PLAIN  # those of its linear


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter by the modules' names in a checkpoint, such as "model.layers.0.self_attn.q_proj"."""

    changes: Mapping[str, Change] = field(default_factory=dict)  # of linears, and of "model.embed_tokens"
    embed: Real | None = None  # (vocab, hidden) in place of the model's
    head: Linear | None = None  # (vocab, hidden)
    norms: Mapping[str, Real] = field(default_factory=dict)  # (hidden,) each


class Rows(NamedTuple):
    """Rows [begin, end) of a batch use ``adapter``, its low-rank part times ``weight``; several may cover a row."""

    begin: int
    end: int
    adapter: Adapter
    weight: float = 1.0


class Adapted:
    """The part of a model that knows of adapters. ``rows`` are those of the matrices that it is given now."""

    rows: Sequence[Rows] = ()

    def sampled_rows(self, rows: Sequence[Rows], sample_rows: NDArray[np.int32]) -> Sequence[Rows]:
        """Return where each adapter's rows are once only the ascending ``sample_rows`` are left."""
        bounds = [np.searchsorted(sample_rows, (begin, end)).tolist() for begin, end, _, _ in rows]
        return [each._replace(begin=begin, end=end) for each, (begin, end) in zip(rows, bounds, strict=True)]

    def adapt_embedding(self, x: Real, tokens: NDArray[np.int32]) -> Real:
        """Change what tokens (rows,) were looked up as: (rows, hidden) -> the same shape."""
        for begin, end, adapter, _ in self.rows:
            if adapter.embed is not None:
                x[begin:end] = adapter.embed[tokens[begin:end]]  # (rows of the adapter, hidden)
        for begin, end, adapter, weight in self.rows:
            change = adapter.changes.get("model.embed_tokens")
            if change is not None:
                x[begin:end] = self.changed(x[begin:end], change.a.T[tokens[begin:end]], change, weight)
        return x

    def adapt_norm(self, name: str, weight: Real, count: int) -> Real:
        """Return the weights of a norm of ``count`` rows: (hidden,), or (count, hidden) with adapters' own."""
        if not any(name in adapter.norms for _, _, adapter, _ in self.rows):
            return weight
        each = np.tile(weight, (count, 1))  # (count, hidden)
        for begin, end, adapter, _ in self.rows:
            each[begin:end] = adapter.norms.get(name, each[begin:end])
        return each

    def adapt_linear(self, name: str, x: Real, y: Real) -> Real:
        """Change a product y (rows, outputs) of x (rows, inputs), to which the bias is not yet added."""
        for begin, end, adapter, _ in self.rows:
            if name == "lm_head" and adapter.head is not None:
                y[begin:end] = self.product(x[begin:end], adapter.head)
        for begin, end, adapter, weight in self.rows:
            change = adapter.changes.get(name)
            if change is not None:
                y[begin:end] = self.changed(y[begin:end], self.shrink(x[begin:end], change), change, weight)
        return y

    def product(self, x: Real, linear: Linear) -> Real:
        """Return x W^T: (rows, inputs) -> (rows, outputs)."""
        return (round_activations(x, linear.rounding) if linear.int8_input else x) @ linear.weight.T

    def shrink(self, x: Real, change: Change) -> Real:
        """Return x A^T: (rows, inputs) -> (rows, rank)."""
        return (round_activations(x, change.rounding) if change.int8_input else x) @ change.a.T

    def changed(self, y: Real, u: Real, change: Change, weight: float) -> Real:
        """Add the low-rank part to y (rows, outputs), from u = x A^T (rows, rank); then scale, then add the bias."""
        y = self.expanded(y, u * self.scaling(change, weight), change)  # (rows, outputs)
        if change.row_scale is not None:
            y = self.rescaled(y, change.row_scale)
        return y if change.bias is None else self.shifted(y, change.bias)

    def scaling(self, change: Change, weight: float) -> Real:
        """Return what each column of u is multiplied with, (rank,)."""
        return change.scaling * weight

    def expanded(self, y: Real, u: Real, change: Change) -> Real:
        """Return y + u B^T: (rows, outputs)."""
        return y + u @ change.b.T

    def rescaled(self, y: Real, row_scale: Real) -> Real:
        """Give each output its magnitude: (rows, outputs)."""
        return y * row_scale

    def shifted(self, y: Real, bias: Real) -> Real:
        """Add the adapter's own bias: (rows, outputs)."""
        return y + bias
