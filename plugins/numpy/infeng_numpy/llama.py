"""The forward pass of Llama and related families, implemented from the models' formulas.

It is independent of the engine's graph, kernels and layouts: weights have the shapes of a Hugging Face checkpoint, and
arithmetic is binary64, so that its own rounding is negligible in comparisons. Each term is a small method, which a
prototype, or a test of a missing term, can override.

Sources: Touvron et al., "LLaMA" (2023) for the block; Zhang and Sennrich (2019) for RMSNorm; Su et al. (2021) for the
rotary embedding; Shazeer (2020) for the gated SiLU; Ainslie et al. (2023) for grouped queries; the Llama 3.1 release
for the "llama3" scaling of frequencies. The configuration determines the terms of other families (post-norms, norms of
q and k, windows, caps, factors, other scalings of frequencies); ``weights.py`` lists the norms of each family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .activations import PLAIN, Rounding
from .adapter import Adapted, Rows
from .cache import PagedCache, slots_of
from .rotary import Rotary

if TYPE_CHECKING:
    from infeng_core.api.formats import ModelConfig

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Linear:
    """x -> x W^T + b. ``int8_input``: the kernels round this weight's inputs to int8, in the form of ``rounding``."""

    weight: Real  # (outputs, inputs)
    bias: Real | None = None  # (outputs,)
    int8_input: bool = False
    name: str = ""  # of the module in a checkpoint, as in adapters
    rounding: Rounding = PLAIN


@dataclass(frozen=True)
class Experts:
    """Weights of a mixture of experts, one per expert."""

    router: Linear  # (experts, hidden)
    gate: Sequence[Linear]  # (intermediate, hidden)
    up: Sequence[Linear]  # (intermediate, hidden)
    down: Sequence[Linear]  # (hidden, intermediate)
    shared: tuple[Linear, Linear, Linear] | None = None  # gate, up and down of the shared expert
    shared_gate: Linear | None = None  # (1, hidden)


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer."""

    attn_norm: Real | None  # (hidden,), or (2, hidden) weight and bias of a LayerNorm; None: no norm before the block
    q: Linear  # (heads * head_dim, hidden)
    k: Linear  # (kv_heads * head_dim, hidden)
    v: Linear  # (kv_heads * head_dim, hidden)
    o: Linear  # (hidden, heads * head_dim)
    mlp_norm: Real | None  # as attn_norm
    gate: Linear | None  # (intermediate, hidden); None with experts, or if the MLP has no gate
    up: Linear | None  # (intermediate, hidden)
    down: Linear | None  # (hidden, intermediate)
    experts: Experts | None = None
    attn_post_norm: Real | None = None  # (hidden,) of the block's output
    mlp_post_norm: Real | None = None  # (hidden,)
    q_norm: Real | None = None  # (head_dim,), or (heads * head_dim,) over all heads
    k_norm: Real | None = None  # (head_dim,), or (kv_heads * head_dim,)
    sinks: Real | None = None  # (heads,) a score without a value per head


@dataclass(frozen=True)
class Weights:
    """Weights of the whole model."""

    embed: Real  # (vocab, hidden)
    layers: Sequence[Layer]
    norm: Real  # (hidden,), or (2, hidden)
    head: Linear  # (vocab, hidden); the embedding if tied


class Llama(Adapted, Rotary):
    """A Llama over a paged cache."""

    def __init__(
        self, config: ModelConfig, weights: Weights, cache: PagedCache, *, block: int = 16, context: int = 0
    ) -> None:
        """Keep the model. context: most positions of a sequence, on which some scalings of frequencies depend."""
        self.config = config
        self.weights = weights
        self.cache = cache
        self.block = block
        self.context = context
        self.layer = 0  # index of the present layer
        self.set_frequencies()
        self.hidden: Real = np.empty((0, 0))  # (rows, hidden) of the last step with ``wants_hidden``

    def forward(
        self,
        tokens: NDArray[np.int32],  # (rows,)
        positions: NDArray[np.int32],  # (rows,)
        segments: NDArray[
            np.int32
        ],  # (segments, 4): first row, last row + 1, first position, offset of its block table
        block_tables: NDArray[np.int32],  # flat
        sample_rows: NDArray[np.int32],  # (samples,)
        rows: Sequence[Rows] = (),  # which rows use which adapters
        wants_hidden: bool = False,
    ) -> Real:
        """Append the rows to the cache and return the logits of the sampled rows, (samples, vocab).

        wants_hidden: keep the head's inputs of all rows in ``hidden``, (rows, hidden).
        """
        self.rows = rows
        x = self.adapt_embedding(self.embed(tokens), tokens)  # (rows, hidden)
        x = x * self.config.embedding_scale  # (rows, hidden)
        for index, layer in enumerate(self.weights.layers):
            self.layer = index
            before, after, before_mlp, after_mlp = self.norm_names(index, layer)
            h = self.maybe_norm(x, before, layer.attn_norm)  # (rows, hidden)
            update = self.attention(index, layer, h, positions, segments, block_tables)  # (rows, hidden)
            x = self.add_attention(x, self.scaled_update(self.maybe_norm(update, after, layer.attn_post_norm)))
            h = self.maybe_norm(x, before_mlp, layer.mlp_norm)  # (rows, hidden)
            update = self.mlp(layer, h)  # (rows, hidden)
            x = self.add_mlp(x, self.scaled_update(self.maybe_norm(update, after_mlp, layer.mlp_post_norm)))
        if wants_hidden:
            self.hidden = self.final_norm(x)  # (rows, hidden)
        self.rows = self.sampled_rows(rows, sample_rows)
        last = self.final_norm(x[sample_rows])  # (samples, hidden)
        return self.head(last)  # (samples, vocab)

    # ---------------------------------------------------------------------------------------------- ends of the model

    def embed(self, tokens: NDArray[np.int32]) -> Real:
        """Look up tokens (rows,) -> (rows, hidden)."""
        return self.weights.embed[tokens]

    def final_norm(self, x: Real) -> Real:
        """Normalise the output of the last layer: (samples, hidden) -> the same shape."""
        return self.maybe_norm(x, "model.norm", self.weights.norm)

    def head(self, x: Real) -> Real:
        """Return logits: (samples, hidden) -> (samples, vocab)."""
        logits = self.linear(x, self.weights.head) * self.config.logit_scale
        return self.capped(logits, self.config.logit_softcap)

    def capped(self, x: Real, cap: float) -> Real:
        """Return cap * tanh(x / cap), any shape; x if the cap is 0."""
        return cap * np.tanh(x / cap) if cap else x

    # ------------------------------------------------------------------------------------------------------ attention

    def attention(
        self,
        index: int,
        layer: Layer,
        h: Real,  # (rows, hidden)
        positions: NDArray[np.int32],
        segments: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> Real:
        """Project, rotate, append to the cache, attend and project back: (rows, hidden) -> (rows, hidden)."""
        c = self.config
        name = f"model.layers.{index}.self_attn"
        q_norm = self.maybe_adapted(f"{name}.q_norm", layer.q_norm, len(h))
        k_norm = self.maybe_adapted(f"{name}.k_norm", layer.k_norm, len(h))
        q = self.normed_heads(self.linear(h, layer.q), q_norm, c.heads)  # (rows, heads, head_dim)
        k = self.normed_heads(self.linear(h, layer.k), k_norm, c.kv_heads)  # (rows, kv_heads, head_dim)
        v = self.linear(h, layer.v).reshape(len(h), c.kv_heads, -1)  # (rows, kv_heads, v_head_dim)
        if index not in c.unrotated:
            q, k = self.rotate_queries(q, positions), self.rotate_keys(k, positions)  # shapes as before
            q = q * self.query_scale(positions)
        mixed = np.empty((*q.shape[:2], v.shape[-1]))  # (rows, heads, v_head_dim)
        for begin, end, pos0, table in segments.tolist():
            seen = np.arange(pos0 + end - begin)  # (length,) every position of this sequence so far
            slots = slots_of(block_tables[table:], seen, self.block)  # (length,)
            self.cache.append(index, slots[pos0:], k[begin:end], v[begin:end])
            mixed[begin:end] = self.attend(q[begin:end], slots, seen[pos0:])
        return self.linear(mixed.reshape(len(h), -1), layer.o)  # (rows, hidden)

    def normed_heads(self, x: Real, norm: Real | None, heads: int) -> Real:
        """Split x (rows, heads * head_dim) into heads and norm them per head or as a whole: (rows, heads, head_dim)."""
        shape = (-1, heads, self.config.head_dim)
        if norm is None:
            return x.reshape(shape)
        if norm.shape[-1] == self.config.head_dim:
            return self.norm(x.reshape(shape), norm.reshape(-1, 1, self.config.head_dim))
        return self.norm(x, norm).reshape(shape)

    def attend(self, q: Real, slots: NDArray[np.intp], positions: NDArray[np.intp]) -> Real:
        """Mix the values of slots (length,) by softmax of the scores, for q (rows, heads, head_dim)."""
        group = self.kv_head_of_heads()  # (heads,)
        keys, values = self.cache.read(self.layer, slots)  # (length, kv_heads, head_dim or v_head_dim)
        q = self.cache.queries(q).transpose(1, 0, 2)  # (heads, rows, head_dim)
        keys, values = keys[:, group].transpose(1, 2, 0), values[:, group].transpose(1, 0, 2)
        # keys (heads, head_dim, length), values (heads, length, v_head_dim)
        s = self.capped(q @ keys * self.score_scale(), self.config.attention_softcap)  # (heads, rows, length)
        s = np.where(self.visible(positions, s.shape[-1]), s, -np.inf)  # (heads, rows, length)
        shares: Real = np.stack(
            [self.cache.shares(self.layer, slots, one, g) for one, g in zip(self.shares_of(s), group, strict=True)]
        )  # (heads, rows, length)
        mixed: Real = (shares @ values).transpose(1, 0, 2)  # (rows, heads, v_head_dim)
        return mixed

    def shares_of(self, s: Real) -> Real:
        """Return the softmax of scores (heads, rows, length); a head's sink adds a term to the denominator."""
        sinks = self.weights.layers[self.layer].sinks
        lost = np.full((len(s), 1, 1), -np.inf) if sinks is None else sinks[:, None, None]  # (heads, 1, 1)
        largest = np.maximum(s.max(axis=-1, keepdims=True), lost)  # (heads, rows, 1)
        p = np.exp(s - largest)  # (heads, rows, length)
        shares: Real = p / (p.sum(axis=-1, keepdims=True) + np.exp(lost - largest))
        return shares

    def kv_head_of_heads(self) -> NDArray[np.intp]:
        """Return which key/value head each query head reads, (heads,): 0 0 0 1 1 1 ... with three to a group."""
        return np.arange(self.config.heads) // (self.config.heads // self.config.kv_heads)

    def score_scale(self) -> float:
        """Return the model's scale of scores, by default 1/sqrt(head_dim), which keeps their variance at 1."""
        return float(self.config.attention_scale or 1 / np.sqrt(self.config.head_dim))

    def visible(self, positions: NDArray[np.intp], length: int) -> NDArray[np.bool_]:
        """Return the causal mask (rows, length), limited to the layer's window if it has one."""
        window = self.config.windows[self.layer] if self.config.windows else 0
        distance = positions[:, None] - np.arange(length)[None, :]  # (rows, length)
        return (distance >= 0) & (distance < (window or length + 1))

    def add_attention(self, x: Real, update: Real) -> Real:
        """Add attention's output to the residual stream: (rows, hidden)."""
        return x + update

    def scaled_update(self, update: Real) -> Real:
        """Scale a block's output: (rows, hidden)."""
        return update * self.config.residual_scale

    # ------------------------------------------------------------------------------------------ feed-forward network

    def mlp(self, layer: Layer, h: Real) -> Real:
        """Return down(gated(gate, up)), down(act(up)) or the mixture of experts: (rows, hidden) -> (rows, hidden)."""
        if layer.experts is not None:
            return self.mixture(layer.experts, h)
        assert layer.up is not None and layer.down is not None
        if layer.gate is None:
            return self.linear(self.activated(self.linear(h, layer.up)), layer.down)
        gate = self.linear(h, layer.gate)  # (rows, intermediate)
        up = self.linear(h, layer.up)  # (rows, intermediate)
        return self.linear(self.gated(gate, up), layer.down)  # (rows, hidden)

    def mixture(self, experts: Experts, h: Real) -> Real:
        """Return the weighted sum of the chosen experts' outputs for each row: (rows, hidden) -> (rows, hidden)."""
        scores = self.linear(h, experts.router)  # (rows, experts)
        chosen = self.chosen(scores)  # (rows, experts per token)
        weights = self.shares(scores, chosen)  # (rows, experts per token)
        mixed = np.zeros_like(h)  # (rows, hidden)
        for expert in np.unique(chosen):
            rows, slots = np.nonzero(chosen == expert)  # (rows of this expert,)
            with self.only(rows):
                gate, up = (self.linear(h[rows], one[expert]) for one in (experts.gate, experts.up))
                mixed[rows] += self.linear(self.gated(gate, up), experts.down[expert]) * weights[rows, slots, None]
        return mixed + self.shared(experts, h)

    def shared(self, experts: Experts, h: Real) -> Real | float:
        """Return the gated output of the shared expert, (rows, hidden); 0 without one."""
        if experts.shared is None or experts.shared_gate is None:
            return 0.0
        gate, up, down = experts.shared
        made = self.linear(self.gated(self.linear(h, gate), self.linear(h, up)), down)  # (rows, hidden)
        share: Real = 1 / (1 + np.exp(-self.linear(h, experts.shared_gate)))  # (rows, 1)
        return made * share

    def chosen(self, scores: Real) -> NDArray[np.intp]:
        """Return the experts with the largest scores, ties to the first: (rows, experts) -> (rows, chosen)."""
        return np.argsort(-scores, axis=-1, kind="stable")[:, : self.config.experts_per_token]

    def shares(self, scores: Real, chosen: NDArray[np.intp]) -> Real:
        """Return the softmax weights of the chosen experts, over all or over the chosen experts: (rows, chosen)."""
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (rows, experts)
        picked: Real = np.take_along_axis(e, chosen, axis=-1)  # (rows, chosen)
        shares: Real = picked / (picked if self.config.share_of_chosen else e).sum(axis=-1, keepdims=True)
        return shares

    def gated(self, gate: Real, up: Real) -> Real:
        """Return act(gate) * up: (rows, intermediate)."""
        if self.config.activation == "swiglu":
            return self.swiglu(gate, up)
        return self.activated(gate) * up

    def activated(self, x: Real) -> Real:
        """Return act(x), any shape."""
        kinds = {"silu": self.silu, "gelu": self.exact_gelu, "gelu_tanh": self.gelu}
        return kinds[self.config.activation](x)

    def swiglu(self, gate: Real, up: Real) -> Real:
        """Return (up + 1) * gate * sigmoid(slope * gate), with gate and up clamped: (rows, intermediate)."""
        limit = self.config.gate_limit
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        product: Real = (up + 1) * gate / (1 + np.exp(-self.config.gate_slope * gate))
        return product

    def gelu(self, x: Real) -> Real:
        """Return x * Phi(x) by the tanh approximation, any shape."""
        share: Real = 1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
        return x / 2 * share

    def exact_gelu(self, x: Real) -> Real:
        """Return x * Phi(x), any shape (Hendrycks and Gimpel, 2016)."""
        erf: Real = np.vectorize(math.erf, otypes=[np.float64])(x / np.sqrt(2))
        return x / 2 * (1 + erf)

    def silu(self, x: Real) -> Real:
        """Return x * sigmoid(x), any shape."""
        decay: Real = np.exp(-x)
        return x / (1 + decay)

    def add_mlp(self, x: Real, update: Real) -> Real:
        """Add the MLP's output to the residual stream: (rows, hidden)."""
        return x + update

    # --------------------------------------------------------------------------------------------------------- shared

    def norm_names(self, index: int, layer: Layer) -> tuple[str, str, str, str]:
        """Return a checkpoint's names of the norms before and after attention, before and after the MLP."""
        name, post = f"model.layers.{index}", "post_attention_layernorm"
        before = post if layer.mlp_post_norm is None else "pre_feedforward_layernorm"
        return f"{name}.input_layernorm", f"{name}.{post}", f"{name}.{before}", f"{name}.post_feedforward_layernorm"

    def maybe_adapted(self, name: str, weight: Real | None, rows: int) -> Real | None:
        """Return the weight of a norm, or a weight per row with adapters; None without a norm."""
        return None if weight is None else self.adapt_norm(name, weight, rows)

    def maybe_norm(self, x: Real, name: str, weight: Real | None) -> Real:
        """Normalise x (rows, hidden) if the norm exists."""
        if weight is not None and weight.ndim == 2:
            return self.layer_norm(x, *weight)
        return x if weight is None else self.norm(x, self.adapt_norm(name, weight, len(x)))

    def norm(self, x: Real, weight: Real) -> Real:
        """Divide each row by its root mean square: x (rows, hidden), weight (hidden,)."""
        mean_square = np.mean(x * x, axis=-1, keepdims=True)  # (rows, 1)
        root: Real = np.sqrt(mean_square + self.config.rms_eps)  # (rows, 1)
        return x / root * weight  # (rows, hidden)

    def layer_norm(self, x: Real, weight: Real, bias: Real) -> Real:
        """Give each row mean 0 and variance 1 (Ba et al., 2016): x (rows, hidden), weight and bias (hidden,)."""
        centered = x - x.mean(axis=-1, keepdims=True)  # (rows, hidden)
        return self.norm(centered, weight) + bias

    def linear(self, x: Real, linear: Linear) -> Real:
        """Return x W^T + b with the changes of adapters: (rows, inputs) -> (rows, outputs)."""
        y = self.adapt_linear(linear.name, x, self.product(x, linear))  # (rows, outputs)
        return y if linear.bias is None else y + linear.bias
