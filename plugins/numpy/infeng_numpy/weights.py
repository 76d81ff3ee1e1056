"""From a checkpoint's tensors to the matrices of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .llama import Experts, Layer, Linear, Weights
from .rounding import PLAIN, Rounding

if TYPE_CHECKING:
    from infeng_core.api import LoadedModel, ModelConfig

Read = Callable[[str], NDArray[Any]]
"""Returns a tensor of the checkpoint by its name, (outputs, inputs) or (outputs,); of tied embeddings, either name."""


def dequantized(model: LoadedModel) -> Weights:
    """Return the numbers that a loaded model computes with, its quantized weights dequantized."""
    return arrange(model.config, model.matrix, partial(rounding_of, model))


def rounding_of(model: LoadedModel, packed: str) -> Rounding | None:
    """Return how the int8 rows that the kernels feed a packed tensor with are made; None where they are floats."""
    quant = model.tensors[packed].quant
    return None if quant.is_float else Rounding(quant.group, quant.is_rotated)


@dataclass(frozen=True)
class Family:
    """What no field of the configuration says of a family: its norms, and how its checkpoints join matrices."""

    norms: tuple[str | None, ...] = ("input_layernorm", None, "post_attention_layernorm", None)
    """Before and after attention, before and after the MLP."""
    qk_norm: bool = False
    fused: bool = False
    offset: float = 0.0  # of the weights of all norms
    qkv_bias: bool | None = None  # None: as the configuration says
    o_bias: bool | None = None
    experts: tuple[str, ...] | None = None
    """The router, and of expert {} gate, up and down; without {}: (experts * rows, columns) of all, gates above ups."""


EXPERTS = ("mlp.gate", *(f"mlp.experts.{{}}.{name}_proj.weight" for name in ("gate", "up", "down")))
MIXTRAL = ("block_sparse_moe.gate", *(f"block_sparse_moe.experts.{{}}.{name}.weight" for name in ("w1", "w3", "w2")))
STACKS = (
    "block_sparse_moe.router.layer",
    *(f"block_sparse_moe.{name}put_linear.weight" for name in ("in", "in", "out")),
)
POST = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILIES = {
    "gemma2": Family(norms=BOTH, offset=1.0),
    "gemma3_text": Family(norms=BOTH, offset=1.0, qk_norm=True),
    "granite": Family(),
    "granitemoe": Family(experts=STACKS),
    "llama": Family(),
    "ministral": Family(qkv_bias=False, o_bias=False),
    "ministral3": Family(qkv_bias=False, o_bias=False),
    "mistral": Family(qkv_bias=False, o_bias=False),
    "mixtral": Family(qkv_bias=False, o_bias=False, experts=MIXTRAL),
    "olmo2": Family(norms=POST, qk_norm=True),
    "olmo3": Family(norms=POST, qk_norm=True),
    "olmoe": Family(qk_norm=True, experts=EXPERTS),
    "phi3": Family(fused=True, qkv_bias=False, o_bias=False),
    "qwen2": Family(qkv_bias=True, o_bias=False),
    "qwen2_moe": Family(qkv_bias=True, o_bias=False, experts=EXPERTS),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts=EXPERTS),
    "smollm3": Family(),
}


def arrange(
    config: ModelConfig, read: Read, rounding: Callable[[str], Rounding | None] = lambda packed: None
) -> Weights:
    """Return the weights of a model of one of FAMILIES in binary64.

    ``rounding`` says of a packed tensor (``infeng_core.models.weights`` names them) how the kernels round what they
    feed it with, None where they do not.
    """
    family = FAMILIES[config.family]
    qkv_bias = config.attention_bias if family.qkv_bias is None else family.qkv_bias
    o_bias = config.attention_bias if family.o_bias is None else family.o_bias

    def real(name: str) -> NDArray[np.float64]:
        return read(name).astype(np.float64)

    def linear(name: str, packed: str, bias: bool = False) -> Linear:
        return fed(real(f"{name}.weight"), packed, real(f"{name}.bias") if bias else None, name)

    def fed(
        matrix: NDArray[np.float64], packed: str, bias: NDArray[np.float64] | None = None, name: str = ""
    ) -> Linear:
        how = rounding(packed)
        return Linear(matrix, bias, how is not None, name, how or PLAIN)

    def joined(module: str, parts: dict[str, int], fused: str, packed: str, bias: bool) -> list[Linear]:
        """Return the matrices of ``parts`` (name: rows), or the rows of ``fused`` that are theirs."""
        if not family.fused:
            return [linear(f"{module}.{part}", packed, bias) for part in parts]
        whole, edges = real(f"{module}.{fused}.weight"), np.cumsum([0, *parts.values()]).tolist()
        return [
            fed(whole[begin:end], packed, name=f"{module}.{fused}[{begin}:{end}]") for begin, end in pairwise(edges)
        ]

    def experts(names: tuple[str, ...], name: str, packed: str) -> Experts:
        """Return the mixture of layer ``name``."""
        router, *matrices = names
        first = f"{packed}.experts.gate_up_proj"
        gates, ups, downs = (
            [fed(matrix, tensor) for matrix in of_experts(f"{name}.{matrices[index]}", index, 1 if index == 2 else 2)]
            for index, tensor in enumerate((first, first, f"{packed}.experts.down_proj"))
        )
        shared = f"{name}.mlp.shared_expert"
        if not config.shared_intermediate:
            return Experts(linear(f"{name}.{router}", f"{packed}.router"), gates, ups, downs)
        both = f"{packed}.shared.gate_up_proj"
        whole = (
            linear(f"{shared}.gate_proj", both),
            linear(f"{shared}.up_proj", both),
            linear(f"{shared}.down_proj", f"{packed}.shared.down_proj"),
        )
        gate = linear(f"{shared}_gate", f"{packed}.shared_gate")
        return Experts(linear(f"{name}.{router}", f"{packed}.router"), gates, ups, downs, whole, gate)

    def of_experts(name: str, index: int, of: int) -> list[NDArray[np.float64]]:
        """Return a matrix of each expert; a stack has ``of`` of each, of which number ``index`` is wanted."""
        if "{}" in name:
            return [real(name.format(expert)) for expert in range(config.experts)]
        stack = real(name)
        return list(stack.reshape(config.experts * of, -1, stack.shape[-1])[index % of :: of])

    def norm(name: str | None) -> NDArray[np.float64] | None:
        return None if name is None else real(f"{name}.weight") + family.offset

    q_rows, kv_rows, inner = config.heads * config.head_dim, config.kv_heads * config.head_dim, config.intermediate

    def layer(index: int) -> Layer:
        name, packed = f"model.layers.{index}", f"layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        norms = [norm(each and f"{name}.{each}") for each in family.norms]
        heads = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        q, k, v = joined(attention, heads, "qkv_proj", f"{packed}.qkv_proj", qkv_bias)
        gates = {"gate_proj": inner, "up_proj": inner}
        mixture, gate, up, down = None, None, None, None
        if family.experts is not None and index not in config.dense_layers:
            mixture = experts(family.experts, name, packed)
        else:
            gate, up = joined(mlp, gates, "gate_up_proj", f"{packed}.gate_up_proj", config.mlp_bias)
            down = linear(f"{mlp}.down_proj", f"{packed}.down_proj", config.mlp_bias)
        return Layer(
            attn_norm=norms[0],
            q=q,
            k=k,
            v=v,
            o=linear(f"{attention}.o_proj", f"{packed}.o_proj", o_bias),
            mlp_norm=norms[2],
            gate=gate,
            up=up,
            down=down,
            experts=mixture,
            attn_post_norm=norms[1],
            mlp_post_norm=norms[3],
            q_norm=norm(f"{attention}.q_norm" if family.qk_norm else None),
            k_norm=norm(f"{attention}.k_norm" if family.qk_norm else None),
        )

    tied = config.tie_embeddings
    head = linear("model.embed_tokens" if tied else "lm_head", "embed" if tied else "lm_head")
    return Weights(
        embed=real("model.embed_tokens.weight"),
        layers=[layer(index) for index in range(config.layers)],
        norm=real("model.norm.weight") + family.offset,
        head=replace(head, name="lm_head"),
    )
