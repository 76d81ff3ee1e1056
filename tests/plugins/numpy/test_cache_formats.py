"""What cache formats cost, by the numbers alone: the demo model in binary64 over each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import infeng_demo
import numpy as np
import pytest
from e2e import harness
from infeng_numpy.cache import CACHES, Int4HCache, PagedCache
from infeng_numpy.llama import Layer, Linear, Llama
from numpy.typing import NDArray

TEXT = Path(os.environ.get("INFENG_TEST_DATA", ".")) / "eval" / "gsm8k_test.jsonl"
TOKENS = 600
LOUD = 3  # the channel of each head of k that is made to stand out, with the one that rope turns it with


class Int4Cache(Int4HCache):
    """4 bits without the rotation."""

    rotated = False


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    with harness.engine(infeng_demo.model_dir(), harness.F32, {"backend.use": "numpy"}) as engine:
        yield engine.executable.model  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def ids() -> NDArray[np.int32]:
    with harness.engine(infeng_demo.model_dir(), harness.F32, {"backend.use": "numpy"}) as engine:
        return np.array(engine.tokenize(TEXT.read_text()[:6000])[:TOKENS], np.int32)


def log_probabilities(llama: Llama, kind: type[PagedCache], ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return those of what follows each token over a cache of this kind, (tokens, vocab)."""
    c, blocks = llama.config, -(-len(ids) // 16)
    llama.cache = kind(layers=c.layers, slots=16 * blocks, kv_heads=c.kv_heads, head_dim=c.head_dim)  # type: ignore[call-arg]
    rows = np.arange(len(ids), dtype=np.int32)
    segments = np.array([[0, len(ids), 0, 0]], np.int32)
    x = llama.forward(ids, rows, segments, np.arange(blocks, dtype=np.int32), rows)
    x = x - x.max(axis=1, keepdims=True)
    log_p: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return log_p


def divergences(llama: Llama, ids: NDArray[np.int32]) -> dict[str, float]:
    """Return the mean KL divergence of each format from f32, and that of 4 bits without the rotation."""
    kinds: dict[str, type[PagedCache]] = {**CACHES, "int4": Int4Cache}  # type: ignore[dict-item]
    exact = log_probabilities(llama, kinds.pop("f32"), ids)
    found = {name: log_probabilities(llama, kind, ids) for name, kind in kinds.items()}
    return {name: float((np.exp(exact) * (exact - one)).sum(axis=1).mean()) for name, one in found.items()}


def loud(layer: Layer, dim: int) -> Layer:
    """Return the layer with two channels of every key 16 times as large and of every query 16 times as small."""

    def scaled(linear: Linear, factor: float) -> Linear:
        factors = np.ones((linear.weight.shape[0] // dim, dim))
        factors[:, [LOUD, LOUD + dim // 2]] = factor
        bias = None if linear.bias is None else linear.bias * factors.ravel()
        return replace(linear, weight=linear.weight * factors.reshape(-1, 1), bias=bias)

    return replace(layer, k=scaled(layer.k, 16.0), q=scaled(layer.q, 1 / 16))


@pytest.mark.slow
def test_the_rotation_improves_4_bits_most_for_keys_with_outliers(
    llama: Llama, ids: NDArray[np.int32], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = divergences(llama, ids)
    weights = llama.weights
    llama.weights = replace(weights, layers=[loud(layer, llama.config.head_dim) for layer in weights.layers])
    with_outliers = divergences(llama, ids)
    llama.weights = weights
    with capsys.disabled():
        for name, kl in plain.items():
            print(f"\n{name:6} KL {kl:.6f}, with outliers {with_outliers[name]:.6f}", end="")
    for found in (plain, with_outliers):
        assert found["f16"] < found["int8h"] < found["k8v4h"] < found["int4h"] < found["int4"]
        assert found["int8h"] < found["fp8h"] < found["int4h"]
    assert with_outliers["int4"] > 3 * with_outliers["int4h"]
    assert with_outliers["int8h"] < with_outliers["int8"]
