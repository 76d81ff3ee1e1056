"""The effect of adapters on the rows of a batch, implemented from the formulas.

A linear's product y = x W^T becomes (y + weight * scaling * (x A^T) B^T) * row_scale + bias on the rows of an adapter,
before the linear's own bias; fully trained modules (embedding, head, norms) replace the model's.

Sources: Hu et al., "LoRA" (2021); Kalajdzievski (2023) for rsLoRA's scaling; Liu et al., "DoRA" (2024), in which
row_scale is the learned magnitude of each row of W + scaling * B A over the row's norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .activations import PLAIN, Rounding, round_activations

if TYPE_CHECKING:
    from .llama import Linear

Real = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Change:
    """An adapter's change of one linear; with rank 0 only scale and bias."""

    a: Real  # (rank, inputs); of an embedding (rank, vocab)
    b: Real  # (outputs, rank)
    scaling: Real  # (rank,)
    row_scale: Real | None = None  # (outputs,)
    bias: Real | None = None  # (outputs,)
    int8_input: bool = False  # A's kernel reads int8 activations
    rounding: Rounding = PLAIN  # of its linear's inputs


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter, by the names of modules in a checkpoint, such as "model.layers.0.self_attn.q_proj"."""

    changes: Mapping[str, Change] = field(default_factory=dict)  # of linears, and of "model.embed_tokens"
    embed: Real | None = None  # (vocab, hidden) in place of the model's
    head: Linear | None = None  # (vocab, hidden)
    norms: Mapping[str, Real] = field(default_factory=dict)  # (hidden,) each


class Rows(NamedTuple):
    """Rows [begin, end) of a batch that use ``adapter`` with its low-rank part times ``weight``; ranges may overlap."""

    begin: int
    end: int
    adapter: Adapter
    weight: float = 1.0


class Adapted:
    """The part of a model that applies adapters. ``rows`` refers to the rows of the present matrices."""

    rows: Sequence[Rows] = ()

    def sampled_rows(self, rows: Sequence[Rows], sample_rows: NDArray[Any]) -> Sequence[Rows]:
        """Return each adapter's range of rows in a matrix of only the ascending ``sample_rows``."""
        bounds = [np.searchsorted(sample_rows, (begin, end)).tolist() for begin, end, _, _ in rows]
        return [each._replace(begin=begin, end=end) for each, (begin, end) in zip(rows, bounds, strict=True)]

    @contextmanager
    def only(self, rows: NDArray[np.intp]) -> Iterator[None]:
        """Expect matrices of only these ascending rows inside the block."""
        whole, self.rows = self.rows, self.sampled_rows(self.rows, rows)
        yield
        self.rows = whole

    def adapt_embedding(self, x: Real, tokens: NDArray[np.int32]) -> Real:
        """Change the embeddings x (rows, hidden) of tokens (rows,) and return them."""
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
        """Change a product y (rows, outputs) of x (rows, inputs), before its bias is added."""
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
        """Return the factor of each column of u, (rank,)."""
        return change.scaling * weight

    def expanded(self, y: Real, u: Real, change: Change) -> Real:
        """Return y + u B^T: (rows, outputs)."""
        return y + u @ change.b.T

    def rescaled(self, y: Real, row_scale: Real) -> Real:
        """Multiply each output by its DoRA scale: (rows, outputs)."""
        return y * row_scale

    def shifted(self, y: Real, bias: Real) -> Real:
        """Add the adapter's own bias: (rows, outputs)."""
        return y + bias
