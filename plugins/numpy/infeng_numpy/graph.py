"""The forward pass of any family, from its graph: each op and each step as docs/numerics.md defines it, in binary64.

Values have the width that the graph gives them, whole panels of 16 columns; a norm fills the columns past its vector
with zeros, as packed weights have zeros there. ``llama`` has the families that the engine brings, written a second
time from their formulas; a family of a plugin has its graph alone, so this is the check of what the graph means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import KernelError
from infeng_core.api.formats import (
    Activate,
    Apply,
    Attention,
    Bias,
    Combine,
    Embed,
    ExpertLinear,
    GatedMul,
    KvAppend,
    LayerNorm,
    Linear,
    Mul,
    Residual,
    RmsNorm,
    Rope,
    Route,
    RowOp,
    RowScale,
    Scale,
    SiluMul,
    Softcap,
    families,
)

from .activations import round_activations
from .cache import PagedCache, slots_of
from .rotary import Rotary
from .weights import rounding_of

if TYPE_CHECKING:
    from infeng_core.api.formats import Graph, LoadedModel, Op, PackedTensor, Step

Real = NDArray[np.float64]

PANEL = 16

FUNCTIONS: dict[str, Callable[[Real], Real]] = {
    "identity": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
"""The functions of steps, any shape."""


@dataclass(frozen=True)
class Routing:
    """Where the latest ``Route`` sent each row."""

    weights: Real  # (rows, chosen)
    places: NDArray[np.intp]  # (rows, chosen): a copy's row among the sorted copies
    begin: NDArray[np.intp]  # (experts + 1,): expert e has copies [begin[e], begin[e + 1])


@dataclass(frozen=True)
class Rows:
    """The rows of a step, and where they are in the cache."""

    tokens: NDArray[np.int32]  # (rows,)
    positions: NDArray[np.int32]  # (rows,)
    segments: list[list[int]]  # first row, last row + 1, first position, offset of the block table
    tables: NDArray[np.int32]  # flat
    sampled: NDArray[np.int32]  # (samples,)


class GraphModel:
    """A model that runs its family's graph over a paged cache, without adapters."""

    def __init__(self, model: LoadedModel, cache: PagedCache, *, block: int, context: int) -> None:
        """Dequantize the weights; raises KernelError for an op or a row op that it has no function for.

        context: most positions of a sequence, on which some scalings of frequencies depend.
        """
        self.config = model.config
        self.graph: Graph = families()[model.config.family].graph(model.config)
        for op in self.graph.ops:
            if type(op) not in OPS or (isinstance(op, RowOp) and op.op != "layernorm"):
                name = op.op if isinstance(op, RowOp) else type(op).__name__
                why = f"its graph has the op {name}, for which there is no function"
                raise KernelError("backend numpy", f"family {model.config.family}: {why}", "use backend native")
        self.cache, self.block, self.context = cache, block, context
        self.tensors = {name: whole(tensor) for name, tensor in model.tensors.items()}
        self.sizes = {name: (tensor.n, tensor.k) for name, tensor in model.tensors.items()}
        self.roundings = {name: rounding_of(model, name) for name in model.tensors}
        self.vectors = {name: vector.astype(np.float64) for name, vector in model.vectors.items()}
        self.turns = {(op.rope, op.head_dim): self.turn(op) for op in self.graph.ops if isinstance(op, Rope)}
        self.values: dict[str, Real] = {}
        self.routing: Routing | None = None

    def forward(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        segments: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        sample_rows: NDArray[np.int32],
        rows: Sequence[Any] = (),
        wants_hidden: bool = False,
    ) -> Real:
        """Append the rows to the cache and return the logits of the sampled rows, as ``Llama.forward`` does."""
        self.step = Rows(tokens, positions, segments.tolist(), block_tables, sample_rows)
        self.values = {}
        for op in self.graph.ops:
            OPS[type(op)](self, op)
        return self.values[self.graph.logits][:, : self.config.vocab]

    # -------------------------------------------------------------------------------------------------------- values

    def read(self, name: str, out: str) -> Real:
        """Return a value's rows for an op that writes ``out``: the sampled ones if only ``out`` is sampled."""
        values = self.graph.values
        gathers = values[out].sampled and not values[name].sampled
        return self.values[name][self.step.sampled] if gathers else self.values[name]

    def write(self, name: str, x: Real) -> None:
        """Keep a value, with zeros in its columns past those of ``x``."""
        columns = self.graph.values[name].columns
        self.values[name] = np.pad(x, ((0, 0), (0, columns - x.shape[1])))

    def after(self, x: Real, steps: Sequence[Step], columns: slice = slice(None)) -> Real:
        """Return x (rows, n) after the steps; ``columns``: the part of the steps' vectors that belongs to it."""
        for step in steps:
            x = self.stepped(x, step, columns)
        return x

    def stepped(self, x: Real, step: Step, columns: slice) -> Real:
        """Return x (rows, n) after one step, (rows, n) or after a gate (rows, n / 2)."""
        match step:
            case Bias(vector):
                return x + self.vectors[vector][columns]
            case RowScale(vector):
                return x * self.vectors[vector][columns]
            case Residual(value):
                return x + self.values[value]
            case Mul(value, function):
                return x * FUNCTIONS[function](self.values[value])
            case SiluMul():
                return self.gated(x, GatedMul("silu"))
            case GatedMul():
                return self.gated(x, step)
            case Scale(factor):
                return x * factor
            case Softcap(cap):
                return cap * np.tanh(x / cap)
            case Activate(function):
                return FUNCTIONS[function](x)

    @staticmethod
    def gated(x: Real, step: GatedMul) -> Real:
        """Return function(gate) * up of x (rows, n), whose panels alternate gate and up: (rows, n / 2)."""
        pairs = x.reshape(len(x), -1, 2, PANEL)
        gate, up = (pairs[:, :, part].reshape(len(x), -1) for part in (0, 1))
        if step.function != "swiglu":
            return FUNCTIONS[step.function](gate) * up
        gate, up = np.minimum(gate, step.limit), np.clip(up, -step.limit, step.limit)
        clamped: Real = (up + 1) * gate / (1 + np.exp(-step.slope * gate))
        return clamped

    # ----------------------------------------------------------------------------------------------------------- ops

    def embed(self, op: Embed) -> None:
        """Look up the tokens."""
        self.write(op.out, self.tensors[op.weight][self.step.tokens])

    def product(self, weight: str, x: Real, rows: slice = slice(None)) -> Real:
        """Return x W^T with the ``rows`` of a packed tensor; x is rounded to int8 where its kernels do so."""
        x, how = x[:, : self.sizes[weight][1]], self.roundings[weight]
        return (x if how is None else round_activations(x, how)) @ self.tensors[weight][rows].T

    def linear(self, op: Linear) -> None:
        """Multiply by a weight."""
        self.write(op.out, self.after(self.product(op.weight, self.read(op.x, op.out)), op.steps))

    def apply(self, op: Apply) -> None:
        """Apply steps alone."""
        self.write(op.out, self.after(self.read(op.x, op.out), op.steps))

    def rmsnorm(self, op: RmsNorm) -> None:
        """Divide each row, or each of its heads, by its root mean square."""
        weight = op.offset + self.vectors[op.weight] if op.weight else 1.0
        x = self.read(op.x, op.out)
        size = len(self.vectors[op.weight]) if op.weight else op.size or x.shape[1]
        if not op.heads:
            self.write(op.out, normed(x[:, :size], op.eps) * weight)
            return
        part = slice(op.column, op.column + op.heads * size)
        heads = x[:, part].reshape(len(x), op.heads, size)
        x[:, part] = (normed(heads, op.eps) * weight).reshape(len(x), -1)

    def layernorm(self, op: LayerNorm) -> None:
        """Give each row mean 0 and variance 1."""
        self.row_op(op.as_row_op())

    def row_op(self, op: RowOp) -> None:
        """Run a row op; there is one, ``layernorm``."""
        names = [str(name) for key, name in op.operands.items() if key != "eps"]
        x = self.read(op.x, op.out)
        size = op.columns or (len(self.vectors[names[0]]) if names else x.shape[1])
        y = normed(x[:, :size] - x[:, :size].mean(axis=1, keepdims=True), float(op.operands["eps"]))
        y = y * self.vectors[str(op.operands["weight"])] if "weight" in op.operands else y
        y = y + self.vectors[str(op.operands["bias"])] if "bias" in op.operands else y
        self.write(op.out, self.after(y, op.steps))

    def turn(self, op: Rope) -> Rotary:
        """Return the rotation of an op, whose angles depend on its parameters and the size of its heads alone."""
        turn = Rotary()
        turn.config = replace(self.config, head_dim=op.head_dim, rope=op.rope, local_rope=None)
        turn.context, turn.layer = self.context, 0
        turn.set_frequencies()
        return turn

    def rope(self, op: Rope) -> None:
        """Norm and rotate the heads of q and of k in place, then scale q by its position."""
        turn = self.turns[op.rope, op.head_dim]
        x, positions = self.values[op.x], self.step.positions
        for column, count, norm in ((0, op.heads, op.q_norm), (op.k_column, op.kv_heads, op.k_norm)):
            part = slice(column, column + count * op.head_dim)
            heads = x[:, part].reshape(len(x), count, op.head_dim)
            if norm:
                heads = normed(heads, op.eps) * (op.offset + self.vectors[norm])
            heads = turn.rotate(heads, positions)
            heads = heads * turn.query_scale(positions) if column == 0 else heads
            x[:, part] = heads.reshape(len(x), -1)

    def kv_append(self, op: KvAppend) -> None:
        """Write k and v to the cache."""
        sizes, x = self.config.cache_heads, self.values[op.x]
        k, v = (
            x[:, column : column + sizes["kv_heads"] * sizes[size]].reshape(len(x), sizes["kv_heads"], sizes[size])
            for column, size in ((op.k_column, "head_dim"), (op.v_column, "v_head_dim"))
        )
        for begin, end, pos0, table in self.step.segments:
            positions = np.arange(pos0, pos0 + end - begin)
            slots = slots_of(self.step.tables[table:], positions, self.block)
            self.cache.append(op.layer, slots, k[begin:end], v[begin:end])

    def attention(self, op: Attention) -> None:
        """Mix the values of each sequence by the softmax of scores."""
        x, of_head = self.values[op.x], np.arange(op.heads) // (op.heads // op.kv_heads)
        q = x[:, : op.heads * op.head_dim].reshape(len(x), op.heads, op.head_dim)
        mixed = np.zeros((len(x), op.heads * (op.v_head_dim or op.head_dim)))
        for begin, end, pos0, table in self.step.segments:
            seen = np.arange(pos0 + end - begin)
            slots = slots_of(self.step.tables[table:], seen, self.block)
            keys, values = self.cache.read(op.layer, slots)  # (length, kv_heads, size)
            scores = np.einsum("rhd,lhd->hrl", self.cache.queries(q[begin:end]), keys[:, of_head]) * op.scale
            shares = self.shares(op, scores, seen[pos0:], seen)
            made = [self.cache.shares(op.layer, slots, one, g) for one, g in zip(shares, of_head.tolist(), strict=True)]
            mixed[begin:end] = np.einsum("hrl,lhd->rhd", np.stack(made), values[:, of_head]).reshape(end - begin, -1)
        self.write(op.out, mixed)

    def shares(self, op: Attention, scores: Real, at: NDArray[np.intp], seen: NDArray[np.intp]) -> Real:
        """Return the softmax of scores (heads, rows, length) of positions ``seen`` for rows at positions ``at``."""
        distance = at[:, None] - seen  # (rows, length)
        if op.softcap:
            scores = op.softcap * np.tanh(scores / op.softcap)
        if op.slopes:
            scores = scores - np.array(op.slopes)[:, None, None] * distance
        scores = np.where((distance >= 0) & (distance < (op.window or len(seen) + 1)), scores, -np.inf)
        sinks = self.vectors[op.sinks][: op.heads, None, None] if op.sinks else np.full((op.heads, 1, 1), -np.inf)
        largest = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        p = np.exp(scores - largest)
        shares: Real = p / (p.sum(axis=-1, keepdims=True) + np.exp(sinks - largest))
        return shares

    def route(self, op: Route) -> None:
        """Choose the experts of each row and sort copies of the rows by expert."""
        logits = self.values[op.logits][:, : op.experts]
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : op.top_k]  # (rows, chosen)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        picked = np.take_along_axis(e, chosen, axis=1)
        weights = picked / (picked if op.share_of_chosen else e).sum(axis=1, keepdims=True)
        order = np.argsort(chosen.reshape(-1), kind="stable")  # copies are sorted by expert, then by row
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        begin = np.searchsorted(chosen.reshape(-1)[order], np.arange(op.experts + 1))
        self.routing = Routing(weights, places.reshape(chosen.shape), begin)
        self.write(op.out, self.values[op.x][order // op.top_k])

    def expert_linear(self, op: ExpertLinear) -> None:
        """Multiply each expert's copies by its part of the weight."""
        assert self.routing is not None, "the graph has experts before a route"
        begin, x = self.routing.begin, self.values[op.x]
        outputs = len(self.tensors[op.weight]) // (len(begin) - 1)
        made = [
            self.after(self.product(op.weight, x[first:last], part), op.steps, part)
            for first, last, part in (
                (begin[e], begin[e + 1], slice(e * outputs, (e + 1) * outputs)) for e in range(len(begin) - 1)
            )
        ]
        self.write(op.out, np.concatenate(made))

    def combine(self, op: Combine) -> None:
        """Sum the copies of each row by their weights."""
        assert self.routing is not None, "the graph has experts before a route"
        summed = (self.values[op.x][self.routing.places] * self.routing.weights[:, :, None]).sum(axis=1)
        if op.shared:
            share = FUNCTIONS["sigmoid"](self.values[op.gate][:, :1]) if op.gate else 1.0
            summed = summed + share * self.values[op.shared]
        self.write(op.out, self.after(summed, op.steps))


OPS: dict[type[Op], Callable[[GraphModel, Any], None]] = {
    Embed: GraphModel.embed,
    RmsNorm: GraphModel.rmsnorm,
    LayerNorm: GraphModel.layernorm,
    RowOp: GraphModel.row_op,
    Linear: GraphModel.linear,
    Apply: GraphModel.apply,
    Rope: GraphModel.rope,
    KvAppend: GraphModel.kv_append,
    Attention: GraphModel.attention,
    Route: GraphModel.route,
    ExpertLinear: GraphModel.expert_linear,
    Combine: GraphModel.combine,
}
"""The function of each op."""


def normed(x: Real, eps: float) -> Real:
    """Divide vectors along the last axis by their root mean square."""
    root: Real = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x / root


def whole(tensor: PackedTensor) -> Real:
    """Return all panels of a tensor, (panels * 16, k)."""
    return tensor.quant.unpack(tensor.buffer, tensor.offset, tensor.panels, tensor.k).astype(np.float64)
