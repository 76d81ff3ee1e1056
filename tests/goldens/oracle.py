"""The NumPy model on a reduced shape, straight from the checkpoint's tensors: none of the engine's code is between."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from goldens.shapes import Case
from infeng_numpy.cache import F32Cache
from infeng_numpy.llama import Llama
from infeng_numpy.weights import arrange
from numpy.typing import NDArray

HERE = Path(__file__).parent
BLOCKS = 48  # of 16 positions: more than any case needs
TOLERANCE = 2e-4  # binary32 through a few layers, with logits of standard deviation 2.5

Tensors = Mapping[str, NDArray[np.float32]]


def golden(case: Case) -> Mapping[str, NDArray[Any]]:
    """Return what transformers computed: prompt, positions, logits, greedy, lead."""
    with np.load(HERE / f"{case.name}.npz") as file:
        return dict(file)


def read_config(config: Mapping[str, Any], head_dim: int) -> SimpleNamespace:
    """Read a config.json of a test, in the three ways of writing rope scaling; the fields of a ModelConfig."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return SimpleNamespace(
        family=config["model_type"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=head_dim,
        layers=config["num_hidden_layers"],
        rms_eps=config["rms_norm_eps"],
        attention_bias=config["attention_bias"],
        mlp_bias=config["mlp_bias"],
        tie_embeddings=config["tie_word_embeddings"],
        intermediate=config["intermediate_size"],
        activation="silu",
        windows=(),
        unrotated=(),
        local_rope=None,
        attention_scale=0.0,
        attention_softcap=0.0,
        logit_softcap=0.0,
        embedding_scale=1.0,
        residual_scale=1.0,
        logit_scale=1.0,
        experts=0,
        shared_intermediate=0,
        rope=SimpleNamespace(
            theta=config.get("rope_theta") or rope["rope_theta"],
            kind=rope.get("rope_type") or rope.get("type") or "default",
            factor=rope.get("factor"),
            low_freq_factor=rope.get("low_freq_factor"),
            high_freq_factor=rope.get("high_freq_factor"),
            original_max_positions=rope.get("original_max_position_embeddings"),
            partial=1.0,
            attention_factor=1.0,
            query_beta=0.0,
        ),
    )


def model(case: Case, kind: type[Llama] = Llama, tensors: Tensors | None = None) -> Llama:
    """Return the NumPy model of a case; ``kind`` and ``tensors`` let a test change a term or a weight."""
    config = read_config(case.config, case.head_dim)
    cache = F32Cache(layers=config.layers, slots=BLOCKS * 16, kv_heads=config.kv_heads, head_dim=config.head_dim)
    tensors = dict(case.tensors()) if tensors is None else dict(tensors)
    if case.stored_head:
        tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"]
    return kind(config, arrange(config, tensors.__getitem__), cache)


def prefill(llama: Llama, prompt: NDArray[np.int32], sampled: NDArray[np.int32]) -> NDArray[np.float64]:
    """Run a whole prompt through blocks in descending order; returns the sampled rows' logits, (samples, vocab)."""
    rows = len(prompt)
    return llama.forward(prompt, np.arange(rows, dtype=np.int32), np.array([[0, rows, 0, 0]], np.int32), TABLE, sampled)


def decode(llama: Llama, token: int, position: int) -> NDArray[np.float64]:
    """Run one more token of the sequence that ``prefill`` began; returns its logits, (vocab,)."""
    one = np.array([token], np.int32), np.array([position], np.int32)
    return llama.forward(*one, np.array([[0, 1, position, 0]], np.int32), TABLE, np.array([0]))[0]


TABLE = np.arange(BLOCKS, dtype=np.int32)[::-1].copy()  # block of positions [16 i, 16 i + 16)
