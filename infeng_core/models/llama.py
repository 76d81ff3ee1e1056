"""Llama 2 and 3: pre-norm blocks of rotary grouped-query attention and a gated SiLU feed-forward layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from infeng_core.models.ops import (
    Attention,
    Bias,
    Embed,
    Graph,
    KvAppend,
    Linear,
    Op,
    Residual,
    RmsNorm,
    Rope,
    SiluMul,
    Step,
    Value,
    panel_columns,
)
from infeng_core.models.weights import layout

if TYPE_CHECKING:
    from infeng_core.models.config import ModelConfig

FAMILY = "llama"
ARCHITECTURES = ("LlamaForCausalLM",)


def graph(config: ModelConfig) -> Graph:
    """Return the forward pass of a Llama of this shape, or of a family that differs only in which linears have biases.

    Weights are named as ``models.weights`` packs them: q, k and v are one tensor in which each part starts on a panel,
    gate and up are one tensor whose panels alternate.
    """
    q_columns = panel_columns(config.heads * config.head_dim)
    kv_columns = panel_columns(config.kv_heads * config.head_dim)
    hidden = panel_columns(config.hidden)
    values = {
        "hidden": Value(hidden),  # the residual stream
        "normed": Value(hidden),
        "qkv": Value(q_columns + 2 * kv_columns),
        "attended": Value(q_columns),
        "gated": Value(panel_columns(config.intermediate)),
        "sampled": Value(hidden, sampled=True),
        "logits": Value(panel_columns(config.vocab), sampled=True),
    }
    biases = frozenset(vector.name for vector in layout(config).vectors if vector.name.endswith(".bias"))
    ops: list[Op] = [Embed("embed", "hidden")]
    for layer in range(config.layers):
        ops += _block(config, layer, biases, k_column=q_columns, v_column=q_columns + kv_columns)
    head = "embed" if config.tie_embeddings else "lm_head"
    ops += [RmsNorm("norm", "hidden", "sampled", config.rms_eps), Linear(head, "sampled", "logits")]
    return Graph(values, tuple(ops), "logits")


def _block(config: ModelConfig, layer: int, biases: frozenset[str], *, k_column: int, v_column: int) -> list[Op]:
    name = f"layers.{layer}"
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim

    def bias(weight: str) -> tuple[Step, ...]:
        vector = f"{name}.{weight}.bias"
        return (Bias(vector),) if vector in biases else ()

    return [
        RmsNorm(f"{name}.attn_norm", "hidden", "normed", config.rms_eps),
        Linear(f"{name}.qkv_proj", "normed", "qkv", bias("qkv_proj")),
        Rope("qkv", heads, kv_heads, head_dim, k_column, config.rope),
        KvAppend("qkv", layer, k_column, v_column),
        Attention("qkv", "attended", layer, heads, kv_heads, head_dim, scale=1.0 / math.sqrt(head_dim)),
        Linear(f"{name}.o_proj", "attended", "hidden", (*bias("o_proj"), Residual("hidden"))),
        RmsNorm(f"{name}.mlp_norm", "hidden", "normed", config.rms_eps),
        Linear(f"{name}.gate_up_proj", "normed", "gated", (*bias("gate_up_proj"), SiluMul())),
        Linear(f"{name}.down_proj", "gated", "hidden", (*bias("down_proj"), Residual("hidden"))),
    ]
