"""The forward pass of a Llama, written down from the model's mathematics.

It knows nothing of the engine's graph, kernels or layouts: weights come in the shapes of a Hugging Face checkpoint, and
arithmetic is binary64, so that its own rounding plays no part when something is compared with it. Each term is a small
method, so that a prototype, or a test that wants to see one term missing, overrides just that one.

Sources: Touvron et al., "LLaMA" (2023) for the block; Zhang and Sennrich (2019) for RMSNorm; Su et al. (2021) for the
rotary embedding; Shazeer (2020) for the gated SiLU; Ainslie et al. (2023) for grouped queries; the "llama3" scaling of
frequencies is that of the Llama 3.1 release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .adapter import Adapted, Rows
from .cache import PagedCache, slots_of
from .rounding import round_to_int8

if TYPE_CHECKING:
    from infeng_core.api import ModelConfig

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Linear:
    """x -> x W^T + b. ``int8_input``: the kernels feed this weight with activations in int8 groups of 64."""

    weight: Real  # (outputs, inputs)
    bias: Real | None = None  # (outputs,)
    int8_input: bool = False
    name: str = ""  # of the module in a checkpoint, by which adapters know it


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer."""

    attn_norm: Real  # (hidden,)
    q: Linear  # (heads * head_dim, hidden)
    k: Linear  # (kv_heads * head_dim, hidden)
    v: Linear  # (kv_heads * head_dim, hidden)
    o: Linear  # (hidden, heads * head_dim)
    mlp_norm: Real  # (hidden,)
    gate: Linear  # (intermediate, hidden)
    up: Linear  # (intermediate, hidden)
    down: Linear  # (hidden, intermediate)


@dataclass(frozen=True)
class Weights:
    """Weights of the whole model."""

    embed: Real  # (vocab, hidden)
    layers: Sequence[Layer]
    norm: Real  # (hidden,)
    head: Linear  # (vocab, hidden); the embedding itself when tied


class Llama(Adapted):
    """A Llama over a paged cache."""

    def __init__(self, config: ModelConfig, weights: Weights, cache: PagedCache, *, block: int = 16) -> None:
        """Take the model."""
        self.config = config
        self.weights = weights
        self.cache = cache
        self.block = block
        self.inv_freq = self.frequencies()  # (head_dim / 2,)
        self.hidden: Real = np.empty((0, 0))  # (rows, hidden) of the last step that was asked for it

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

        wants_hidden: keep in ``hidden`` what the head would read of all rows, (rows, hidden).
        """
        self.rows = rows
        x = self.adapt_embedding(self.embed(tokens), tokens)  # (rows, hidden)
        for index, layer in enumerate(self.weights.layers):
            name = f"model.layers.{index}"
            h = self.norm(x, self.adapt_norm(f"{name}.input_layernorm", layer.attn_norm, len(x)))  # (rows, hidden)
            x = self.add_attention(
                x, self.attention(index, layer, h, positions, segments, block_tables)
            )  # (rows, hidden)
            h = self.norm(
                x, self.adapt_norm(f"{name}.post_attention_layernorm", layer.mlp_norm, len(x))
            )  # (rows, hidden)
            x = self.add_mlp(x, self.mlp(layer, h))  # (rows, hidden)
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
        """Normalise what the last layer leaves: (samples, hidden) -> the same shape."""
        return self.norm(x, self.adapt_norm("model.norm", self.weights.norm, len(x)))

    def head(self, x: Real) -> Real:
        """Score every token: (samples, hidden) -> (samples, vocab)."""
        return self.linear(x, self.weights.head)

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
        """Project, rotate, remember, attend and project back: (rows, hidden) -> (rows, hidden)."""
        c = self.config
        q = self.linear(h, layer.q).reshape(-1, c.heads, c.head_dim)  # (rows, heads, head_dim)
        k = self.linear(h, layer.k).reshape(-1, c.kv_heads, c.head_dim)  # (rows, kv_heads, head_dim)
        v = self.linear(h, layer.v).reshape(-1, c.kv_heads, c.head_dim)  # (rows, kv_heads, head_dim)
        q, k = self.rotate_queries(q, positions), self.rotate_keys(k, positions)  # shapes as before
        mixed = np.empty_like(q)  # (rows, heads, head_dim)
        for begin, end, pos0, table in segments.tolist():
            seen = np.arange(pos0 + end - begin)  # (length,) every position of this sequence so far
            slots = slots_of(block_tables[table:], seen, self.block)  # (length,)
            self.cache.append(index, slots[pos0:], k[begin:end], v[begin:end])
            keys, values = self.cache.read(index, slots)  # (length, kv_heads, head_dim) each
            mixed[begin:end] = self.attend(q[begin:end], keys, values, seen[pos0:])
        return self.linear(mixed.reshape(-1, c.heads * c.head_dim), layer.o)  # (rows, hidden)

    def attend(
        self, q: Real, keys: NDArray[np.floating], values: NDArray[np.floating], positions: NDArray[np.intp]
    ) -> Real:
        """Mix values by softmax of the scores: q (rows, heads, head_dim), keys, values (length, kv_heads, head_dim)."""
        group = self.kv_head_of_heads()  # (heads,)
        if self.cache.rounds_queries:
            q = round_to_int8(q)
        q = q.transpose(1, 0, 2)  # (heads, rows, head_dim)
        keys, values = keys[:, group].transpose(1, 2, 0), values[:, group].transpose(1, 0, 2)
        # keys (heads, head_dim, length), values (heads, length, head_dim)
        s = q @ keys * self.score_scale()  # (heads, rows, length)
        s = np.where(self.visible(positions, s.shape[-1]), s, -np.inf)  # (heads, rows, length)
        p = np.exp(s - s.max(axis=-1, keepdims=True))  # (heads, rows, length)
        p /= p.sum(axis=-1, keepdims=True)  # (heads, rows, length) each row sums to 1
        mixed: Real = (p @ values).transpose(1, 0, 2)  # (rows, heads, head_dim)
        return mixed

    def kv_head_of_heads(self) -> NDArray[np.intp]:
        """Return which key/value head each query head reads, (heads,): 0 0 0 1 1 1 ... with three to a group."""
        return np.arange(self.config.heads) // (self.config.heads // self.config.kv_heads)

    def score_scale(self) -> float:
        """Return 1/sqrt(head_dim), which keeps the variance of a score at 1."""
        return float(1 / np.sqrt(self.config.head_dim))

    def visible(self, positions: NDArray[np.intp], length: int) -> NDArray[np.bool_]:
        """Return the causal mask (rows, length): a token sees itself and what came before."""
        return np.arange(length)[None, :] <= positions[:, None]

    def add_attention(self, x: Real, update: Real) -> Real:
        """First residual: (rows, hidden)."""
        return x + update

    # ---------------------------------------------------------------------------------------------- rotary embedding

    def rotate_queries(self, q: Real, positions: NDArray[np.int32]) -> Real:
        """Rotate q (rows, heads, head_dim)."""
        return self.rotate(q, positions)

    def rotate_keys(self, k: Real, positions: NDArray[np.int32]) -> Real:
        """Rotate k (rows, kv_heads, head_dim)."""
        return self.rotate(k, positions)

    def rotate(self, x: Real, positions: NDArray[np.int32]) -> Real:
        """Turn each pair (x[i], x[i + head_dim/2]) by position * inv_freq[i]: (rows, heads, head_dim)."""
        angle = positions[:, None, None] * self.inv_freq  # (rows, 1, head_dim / 2)
        first, second = np.split(x, 2, axis=-1)  # (rows, heads, head_dim / 2) each
        pair = (first + 1j * second) * np.exp(1j * angle)  # (rows, heads, head_dim / 2) a turn of the complex plane
        return np.concatenate([pair.real, pair.imag], axis=-1)  # (rows, heads, head_dim)

    def frequencies(self) -> Real:
        """Return the angle that each pair turns per position, (head_dim / 2,).

        The checkpoint was trained with these numbers in binary32, so they are rounded to it once.
        """
        rope, dim = self.config.rope, self.config.head_dim
        inv_freq = float(rope.theta) ** (-np.arange(0, dim, 2) / dim)  # (head_dim / 2,)
        if rope.kind == "linear":
            inv_freq = inv_freq / rope.factor
        elif rope.kind == "llama3":
            inv_freq = self.llama3_frequencies(inv_freq)
        return inv_freq.astype(np.float32).astype(np.float64)

    def llama3_frequencies(self, inv_freq: Real) -> Real:
        """Slow down the pairs that turn too rarely within the original context; (head_dim / 2,) -> the same shape.

        ``turns`` is how often a pair turns within it. From ``high_freq_factor`` turns on a pair stays, up to
        ``low_freq_factor`` turns it is slowed by ``factor``, and between them the share of both is linear in ``turns``.
        """
        rope = self.config.rope
        turns = rope.original_max_positions * inv_freq / (2 * np.pi)  # (head_dim / 2,)
        kept: Real = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)  # (head_dim / 2,)
        kept = np.clip(kept, 0, 1)
        return kept * inv_freq + (1 - kept) * inv_freq / rope.factor

    # ------------------------------------------------------------------------------------------ feed-forward network

    def mlp(self, layer: Layer, h: Real) -> Real:
        """Gate, widen and narrow: (rows, hidden) -> (rows, hidden)."""
        gate = self.linear(h, layer.gate)  # (rows, intermediate)
        up = self.linear(h, layer.up)  # (rows, intermediate)
        return self.linear(self.gated(gate, up), layer.down)  # (rows, hidden)

    def gated(self, gate: Real, up: Real) -> Real:
        """Multiply what the gate lets through: (rows, intermediate)."""
        return self.silu(gate) * up

    def silu(self, x: Real) -> Real:
        """Return x * sigmoid(x), any shape."""
        decay: Real = np.exp(-x)
        return x / (1 + decay)

    def add_mlp(self, x: Real, update: Real) -> Real:
        """Second residual: (rows, hidden)."""
        return x + update

    # --------------------------------------------------------------------------------------------------------- shared

    def norm(self, x: Real, weight: Real) -> Real:
        """Divide each row by its root mean square: x (rows, hidden), weight (hidden,)."""
        mean_square = np.mean(x * x, axis=-1, keepdims=True)  # (rows, 1)
        root: Real = np.sqrt(mean_square + self.config.rms_eps)  # (rows, 1)
        return x / root * weight  # (rows, hidden)

    def linear(self, x: Real, linear: Linear) -> Real:
        """Return x W^T + b with what adapters change: (rows, inputs) -> (rows, outputs)."""
        y = self.adapt_linear(linear.name, x, self.product(x, linear))  # (rows, outputs)
        return y if linear.bias is None else y + linear.bias
