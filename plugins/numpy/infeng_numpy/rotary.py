"""Rotary position embedding, implemented from its formulas: the angle of each pair, and its scalings.

Sources: Su et al. (2021) for the embedding; the Llama 3.1 release for the "llama3" scaling; Peng et al. (2023) for
yarn; Ding et al. (2024) for longrope; transformers' version of bloc97's and emozilla's dynamic NTK scaling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from infeng_core.api.formats import ModelConfig, RopeConfig

Real = NDArray[np.float64]


class Rotary:
    """The part of a model that rotates queries and keys by their positions."""

    config: ModelConfig
    context: int  # most positions of a sequence
    layer: int  # index of the present layer

    def set_frequencies(self) -> None:
        """Compute the angles per position, for all layers and for layers with a window, (rot / 2,) each."""
        self.inv_freq = self.frequencies()
        local = self.config.local_rope
        self.local_inv_freq = self.inv_freq if local is None else self.scaled(local)

    def rope_now(self) -> RopeConfig:
        """Return the parameters of the present layer."""
        c = self.config
        return c.local_rope if c.local_rope is not None and c.windows and c.windows[self.layer] else c.rope

    def query_scale(self, positions: NDArray[np.int32]) -> Real:
        """Return the factor of q, (rows, 1, 1): 1 + beta ln(1 + floor(position / original))."""
        rope = self.rope_now()
        if not rope.query_beta:
            return np.ones((1, 1, 1))
        return 1 + rope.query_beta * np.log1p(positions // rope.original_max_positions)[:, None, None]

    def rotate_queries(self, q: Real, positions: NDArray[np.int32]) -> Real:
        """Rotate q (rows, heads, head_dim)."""
        return self.rotate(q, positions)

    def rotate_keys(self, k: Real, positions: NDArray[np.int32]) -> Real:
        """Rotate k (rows, kv_heads, head_dim)."""
        return self.rotate(k, positions)

    def rotate(self, x: Real, positions: NDArray[np.int32]) -> Real:
        """Rotate each pair (x[i], x[i + rot/2]) by position * inv_freq[i]: (rows, heads, head_dim).

        Values after the first rot values of a head are unchanged.
        """
        rope = self.rope_now()
        inv_freq = self.inv_freq if rope is self.config.rope else self.local_inv_freq
        angle = positions[:, None, None] * inv_freq  # (rows, 1, rot / 2)
        rot = 2 * len(inv_freq)
        first, second = np.split(x[..., :rot], 2, axis=-1)  # (rows, heads, rot / 2) each
        pair = (first + 1j * second) * np.exp(1j * angle)  # (rows, heads, rot / 2) a turn of the complex plane
        pair = pair * rope.attention_factor
        return np.concatenate([pair.real, pair.imag, x[..., rot:]], axis=-1)  # (rows, heads, head_dim)

    def frequencies(self) -> Real:
        """Return the angle of each pair per position, (rot / 2,)."""
        return self.scaled(self.config.rope)

    def scaled(self, rope: RopeConfig) -> Real:
        """Return the frequencies of a rope's parameters, (rot / 2,).

        They are rounded to binary32, in which the checkpoint was trained.
        """
        dim = int(self.config.head_dim * rope.partial)
        theta, original = float(rope.theta), rope.original_max_positions
        if rope.kind == "dynamic" and self.context > original:
            theta *= (rope.factor * self.context / original - (rope.factor - 1)) ** (dim / (dim - 2))
        inv_freq = theta ** (-np.arange(0, dim, 2) / dim)  # (rot / 2,)
        if rope.kind == "linear":
            inv_freq = inv_freq / rope.factor
        elif rope.kind == "llama3":
            inv_freq = self.llama3_frequencies(inv_freq)
        elif rope.kind == "yarn":
            inv_freq = self.yarn_frequencies(rope, inv_freq)
        elif rope.kind == "longrope":
            inv_freq = inv_freq / np.array(rope.long_factors if self.context > original else rope.short_factors)
        return inv_freq.astype(np.float32).astype(np.float64)

    def yarn_frequencies(self, rope: RopeConfig, inv_freq: Real) -> Real:
        """Slow down pairs of low frequency, by a share that is linear in the pair's index: the same shape.

        The share rises from the index with ``beta_fast`` turns in the original context to that with ``beta_slow``.
        """
        turns = np.array([rope.beta_fast, rope.beta_slow])
        first, last = len(inv_freq) * np.log(rope.original_max_positions / turns / (2 * np.pi)) / np.log(rope.theta)
        if rope.truncate:
            first, last = np.floor(first), np.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(inv_freq) - 1)
        slowed = np.clip((np.arange(len(inv_freq)) - first) / max(last - first, 0.001), 0, 1)  # (rot / 2,)
        blended: Real = slowed * inv_freq / rope.factor + (1 - slowed) * inv_freq  # (rot / 2,)
        return blended

    def llama3_frequencies(self, inv_freq: Real) -> Real:
        """Slow down pairs of low frequency; (head_dim / 2,) -> the same shape.

        ``turns`` counts a pair's turns in the original context. A pair with at least ``high_freq_factor`` turns is
        unchanged, one with at most ``low_freq_factor`` is slowed by ``factor``, with linear interpolation between.
        """
        rope = self.config.rope
        turns = rope.original_max_positions * inv_freq / (2 * np.pi)  # (head_dim / 2,)
        kept: Real = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)  # (head_dim / 2,)
        kept = np.clip(kept, 0, 1)
        return kept * inv_freq + (1 - kept) * inv_freq / rope.factor
