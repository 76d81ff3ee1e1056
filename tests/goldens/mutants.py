"""One wrong model for each term of a Llama: the term is left out, or is what people mistake it for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from goldens.oracle import Tensors
from goldens.shapes import BIASED, LINEAR, LLAMA3, Case
from infeng_numpy.llama import Llama
from numpy.typing import NDArray

Real = NDArray[Any]

SHORT = 65  # rows that show a wrong term unless it is about splits of 256 positions
WHOLE = 530


@dataclass(frozen=True)
class Mutant:
    """A Llama with one method replaced, and the case that must notice."""

    name: str
    method: str
    make: Callable[..., Any]  # like the method, with self first
    case: Case
    rows: int  # of the prompt that are enough to see it

    @property
    def model(self) -> type[Llama]:
        """Return the wrong class."""
        return type("Mutant", (Llama,), {self.method: self.make})


def _mutant(name: str, method: str, make: Callable[..., Any], case: Case = BIASED, rows: int = SHORT) -> Mutant:
    assert hasattr(Llama, method), f"{method} is not a term of the model"
    return Mutant(name, method, make, case, rows)


def _norm(self: Llama, x: Real, weight: Real, *, eps: float | None = None, mean: Any = np.mean) -> Real:
    eps = self.config.rms_eps if eps is None else eps
    return x / np.sqrt(mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _centred_norm(self: Llama, x: Real, weight: Real) -> Real:
    return _norm(self, x - x.mean(axis=-1, keepdims=True), weight)


def _neighbours(self: Llama, x: Real, positions: Real) -> Real:
    turned = Llama.rotate(self, np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1), positions)
    return np.stack(np.split(turned, 2, axis=-1), axis=-1).reshape(x.shape)


def _frequencies(self: Llama, *, theta: float | None = None, factor: float = 1.0) -> Real:
    dim = self.config.head_dim
    return (theta or self.config.rope.theta) ** (-np.arange(0, dim, 2) / dim) / factor


def _hard_bands(self: Llama, inv_freq: Real) -> Real:
    rope = self.config.rope
    turns = rope.original_max_positions * inv_freq / (2 * np.pi)
    return np.where(turns >= rope.high_freq_factor, inv_freq, inv_freq / rope.factor)


def _two_bands(self: Llama, inv_freq: Real) -> Real:
    rope = self.config.rope
    turns = rope.original_max_positions * inv_freq / (2 * np.pi)
    return np.where(turns >= rope.low_freq_factor, inv_freq, inv_freq / rope.factor)


def _window(size: int) -> Callable[..., Real]:
    def visible(self: Llama, positions: Real, length: int) -> Real:
        return Llama.visible(self, positions, length) & (np.arange(length) > positions[:, None] - size)

    return visible


def _without_position(position: int) -> Callable[..., Real]:
    def visible(self: Llama, positions: Real, length: int) -> Real:
        mask = Llama.visible(self, positions, length)
        mask[:, position] &= positions == position
        return mask

    return visible


def _with_next(self: Llama, positions: Real, length: int) -> Real:
    return np.arange(length)[None, :] <= positions[:, None] + 1


def _last_split_alone(self: Llama, positions: Real, length: int) -> Real:
    return Llama.visible(self, positions, length) & (np.arange(length) // 256 == positions[:, None] // 256)


def _lost_append(layer: int, slot: int) -> Callable[..., Real]:
    """Leave what an append should have written at one place of one layer's cache as it was: zero."""

    def attention(self: Llama, index: int, *rest: Any) -> Real:
        append = self.cache.append

        def lossy(at: int, slots: Real, k: Real, v: Real) -> None:
            kept = slots != slot if index == layer else slots >= 0
            append(at, slots[kept], k[kept], v[kept])

        self.cache.append = lossy  # type: ignore[method-assign]
        try:
            return Llama.attention(self, index, *rest)
        finally:
            self.cache.append = append  # type: ignore[method-assign]

    return attention


def _last_value_lost(self: Llama, q: Real, slots: Real, positions: Real) -> Real:
    read = self.cache.read

    def lossy(layer: int, slots: Real) -> tuple[Real, Real]:
        keys, values = read(layer, slots)
        values[-1] = 0
        return keys, values

    self.cache.read = lossy  # type: ignore[method-assign]
    try:
        return Llama.attend(self, q, slots, positions)
    finally:
        self.cache.read = read  # type: ignore[method-assign]


def _gelu(self: Llama, x: Real) -> Real:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


OPS = (
    # the ends
    _mutant("embedding of the next id", "embed", lambda self, tokens: self.weights.embed[tokens - 1]),
    _mutant("final norm left out", "final_norm", lambda self, x: x),
    _mutant("final norm without its weight", "final_norm", lambda self, x: self.norm(x, np.ones(x.shape[-1]))),
    _mutant("head of the embedding", "head", lambda self, x: x @ self.weights.embed.T),
    # norms
    _mutant("norms left out", "norm", lambda self, x, weight: x * weight),
    _mutant("norms without epsilon", "norm", lambda self, x, weight: _norm(self, x, weight, eps=0.0)),
    _mutant("epsilon of another model", "norm", lambda self, x, weight: _norm(self, x, weight, eps=1e-5)),
    _mutant("norms by the sum of squares", "norm", lambda self, x, weight: _norm(self, x, weight, mean=np.sum)),
    _mutant("layer norm for RMS norm", "norm", _centred_norm),
    # residuals
    _mutant("first residual left out", "add_attention", lambda self, x, update: update),
    _mutant("second residual left out", "add_mlp", lambda self, x, update: update),
    _mutant("attention left out", "add_attention", lambda self, x, update: x),
    _mutant("feed-forward left out", "add_mlp", lambda self, x, update: x),
    # rotary embedding
    _mutant("no rotation", "rotate", lambda self, x, positions: x),
    _mutant("queries not rotated", "rotate_queries", lambda self, x, positions: x),
    _mutant("keys not rotated", "rotate_keys", lambda self, x, positions: x),
    _mutant("queries one position late", "rotate_queries", lambda self, x, positions: self.rotate(x, positions + 1)),
    _mutant("rotation the other way", "rotate", lambda self, x, positions: Llama.rotate(self, x, -positions)),
    _mutant("neighbours as pairs", "rotate", _neighbours),
    _mutant("positions from one on within a block", "rotate", lambda self, x, p: Llama.rotate(self, x, p % 16)),
    _mutant("theta of another model", "frequencies", lambda self: _frequencies(self, theta=12000.0)),
    _mutant("linear scaling left out", "frequencies", _frequencies, LINEAR),
    _mutant("linear scaling by half", "frequencies", lambda self: _frequencies(self, factor=2.0), LINEAR),
    _mutant("llama3 scaling left out", "frequencies", _frequencies, LLAMA3),
    _mutant("llama3 scaling as linear", "frequencies", lambda self: _frequencies(self, factor=8.0), LLAMA3),
    _mutant("llama3 blend as slow", "llama3_frequencies", _hard_bands, LLAMA3),
    _mutant("llama3 blend as fast", "llama3_frequencies", _two_bands, LLAMA3),
    # attention
    _mutant("scores not scaled", "score_scale", lambda self: 1.0),
    _mutant("scores scaled by 1/d", "score_scale", lambda self: 1 / self.config.head_dim),
    _mutant("scores scaled by the hidden size", "score_scale", lambda self: self.weights.norm.size**-0.5),
    _mutant("no causal mask", "visible", lambda self, positions, length: np.ones((len(positions), length), bool)),
    _mutant("one token of the future", "visible", _with_next),
    _mutant("a window of 256", "visible", _window(256), rows=WHOLE),
    _mutant("the first token forgotten", "visible", _without_position(0)),
    _mutant("one token of the second split forgotten", "visible", _without_position(256), rows=WHOLE),
    _mutant("earlier splits forgotten", "visible", _last_split_alone, rows=WHOLE),
    _mutant("heads share keys in turn", "kv_head_of_heads", lambda self: np.arange(6) % 2),
    _mutant("all heads share the first keys", "kv_head_of_heads", lambda self: np.zeros(6, int)),
    _mutant("the newest value not appended", "attend", _last_value_lost),
    _mutant("an append lost in the first layer", "attention", _lost_append(0, 47 * 16 + 15)),
    _mutant("an append lost in the last layer", "attention", _lost_append(1, 47 * 16 + 15)),
    # feed-forward
    _mutant("gate without SiLU", "silu", lambda self, x: x),
    _mutant("sigmoid for SiLU", "silu", lambda self, x: 1 / (1 + np.exp(-x))),
    _mutant("ReLU for SiLU", "silu", lambda self, x: np.maximum(x, 0)),
    _mutant("GELU for SiLU", "silu", _gelu),
    _mutant("gate left out", "gated", lambda self, gate, up: up),
    _mutant("up left out", "gated", lambda self, gate, up: self.silu(gate)),
    _mutant("gate and up exchanged", "gated", lambda self, gate, up: self.silu(up) * gate),
)


def tensor_mutants(tensors: Tensors) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each tensor changed: a bias is dropped, the weights of a norm are 1, a matrix is 5 percent too large."""
    for name, tensor in tensors.items():
        if name.endswith(".bias"):
            yield name, np.zeros_like(tensor)
        elif tensor.ndim == 1:
            yield name, np.ones_like(tensor)
        else:
            yield name, tensor * np.float32(1.05)
