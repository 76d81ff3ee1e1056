"""Arrange a checkpoint's tensors as the matrices of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.formats import layout

from .activations import PLAIN, Rounding
from .llama import Experts, Layer, Linear, Weights

if TYPE_CHECKING:
    from infeng_core.api.formats import LoadedModel, ModelConfig

Matrix = NDArray[np.float64]
"""A matrix or a vector."""

Read = Callable[[str], NDArray[Any]]
"""Returns a tensor of the checkpoint by its name, (outputs, inputs) or (outputs,); tied embeddings have both names."""


def dequantized(model: LoadedModel) -> Weights:
    """Return the weights of a model, dequantized: one tensor after the other, none of which is kept as it is stored."""
    whole = layout(model.config)
    parts = {tensor.name: tensor.parts for tensor in whole.tensors} | {one.name: one.parts for one in whole.vectors}
    matrices: dict[str, Matrix] = {}
    for name, weight in model.weights():
        alone: dict[str, Any] = {name: weight}
        one = replace(model, tensors=alone, vectors=alone)
        for source in dict.fromkeys(part.source for part in parts[name]):
            matrices[source] = one.matrix(source).astype(np.float64)
    return arrange(model.config, matrices.__getitem__, partial(rounding_of, model))


def rounding_of(model: LoadedModel, packed: str) -> Rounding | None:
    """Return the int8 rounding of a packed tensor's inputs in the kernels; None for float inputs."""
    tensor = model.tensors[packed]
    quant = tensor.quant
    return None if quant.is_float else Rounding(quant.group, quant.rotation(tensor.k))


@dataclass(frozen=True)
class Family:
    """Facts of a family that its configuration lacks: its norms, and the joined matrices of its checkpoints."""

    norms: tuple[str | None, ...] = ("input_layernorm", None, "post_attention_layernorm", None)
    """Norms before and after attention, before and after the MLP."""
    qk_norm: bool = False
    fused: bool = False
    offset: float = 0.0  # of the weights of all norms
    qkv_bias: bool | None = None  # None: as the configuration says
    o_bias: bool | None = None
    experts: tuple[str, ...] | None = None
    """Router, and gate, up and down of expert {}; without {}: all experts, (experts * rows, columns), gate above up."""
    in_turns: bool = False  # rows of gate and up alternate instead; router and experts have biases
    sinks: bool = False
    layer_norm: bool = False  # norms subtract the mean and have biases
    plain_mlp: tuple[str, str] | None = None  # the linears of an MLP without a gate


EXPERTS = ("mlp.gate", *(f"mlp.experts.{{}}.{name}_proj.weight" for name in ("gate", "up", "down")))
MIXTRAL = ("block_sparse_moe.gate", *(f"block_sparse_moe.experts.{{}}.{name}.weight" for name in ("w1", "w3", "w2")))
STACKS = (
    "block_sparse_moe.router.layer",
    *(f"block_sparse_moe.{name}put_linear.weight" for name in ("in", "in", "out")),
)
OSS = ("mlp.router", "mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj", "mlp.experts.down_proj")
POST = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILIES = {
    "gemma2": Family(norms=BOTH, offset=1.0),
    "gemma3_text": Family(norms=BOTH, offset=1.0, qk_norm=True),
    "gpt_oss": Family(experts=OSS, in_turns=True, sinks=True),
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
    "starcoder2": Family(layer_norm=True, plain_mlp=("c_fc", "c_proj")),
}


def arrange(
    config: ModelConfig, read: Read, rounding: Callable[[str], Rounding | None] = lambda packed: None
) -> Weights:
    """Return the weights of a model of one of FAMILIES in binary64.

    rounding: returns the kernels' rounding of a packed tensor's inputs, or None (``infeng_core.models.weights`` names
    packed tensors).
    """
    tensors = _Tensors(config, FAMILIES[config.family], read, rounding)
    tied = config.tie_embeddings
    head = tensors.linear("model.embed_tokens" if tied else "lm_head", "embed" if tied else "lm_head")
    return Weights(
        embed=tensors.real("model.embed_tokens.weight"),
        layers=[tensors.layer(index) for index in range(config.layers)],
        norm=tensors.required_norm("model.norm"),
        head=replace(head, name="lm_head"),
    )


@dataclass(frozen=True)
class _Tensors:
    """A checkpoint in its family's layout. ``packed`` names the packed tensor of which a matrix is a part."""

    config: ModelConfig
    family: Family
    read: Read
    rounding: Callable[[str], Rounding | None]

    def layer(self, index: int) -> Layer:
        config, family = self.config, self.family
        name, packed = f"model.layers.{index}", f"layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        norms = [self.norm(each and f"{name}.{each}") for each in family.norms]
        qkv_bias = config.attention_bias if family.qkv_bias is None else family.qkv_bias
        o_bias = config.attention_bias if family.o_bias is None else family.o_bias
        kv_rows = config.kv_heads * config.head_dim
        heads = {"q_proj": config.heads * config.head_dim, "k_proj": kv_rows, "v_proj": kv_rows}
        q, k, v = self.joined(attention, heads, "qkv_proj", f"{packed}.qkv_proj", qkv_bias)
        mixture, gate, up, down = None, None, None, None
        if family.experts is not None and index not in config.dense_layers:
            mixture = self.experts(family.experts, name, packed)
        elif family.plain_mlp is not None:
            up, down = (
                self.linear(f"{mlp}.{each}", f"{packed}.{tensor}", config.mlp_bias)
                for each, tensor in zip(family.plain_mlp, ("up_proj", "down_proj"), strict=True)
            )
        else:
            gates = dict.fromkeys(("gate_proj", "up_proj"), config.intermediate)
            gate, up = self.joined(mlp, gates, "gate_up_proj", f"{packed}.gate_up_proj", config.mlp_bias)
            down = self.linear(f"{mlp}.down_proj", f"{packed}.down_proj", config.mlp_bias)
        return Layer(
            attn_norm=norms[0],
            q=q,
            k=k,
            v=v,
            o=self.linear(f"{attention}.o_proj", f"{packed}.o_proj", o_bias),
            mlp_norm=norms[2],
            gate=gate,
            up=up,
            down=down,
            experts=mixture,
            attn_post_norm=norms[1],
            mlp_post_norm=norms[3],
            q_norm=self.norm(f"{attention}.q_norm" if family.qk_norm else None),
            k_norm=self.norm(f"{attention}.k_norm" if family.qk_norm else None),
            sinks=self.real(f"{attention}.sinks") if family.sinks else None,
        )

    def experts(self, names: tuple[str, ...], name: str, packed: str) -> Experts:
        """Return the mixture of layer ``name``."""
        router, *matrices = names
        first = f"{packed}.experts.gate_up_proj"
        gates, ups, downs = (
            [
                self.fed(matrix, tensor, bias, module)
                for module, matrix, bias in self.of_experts(f"{name}.{matrices[index]}", index, 1 if index == 2 else 2)
            ]
            for index, tensor in enumerate((first, first, f"{packed}.experts.down_proj"))
        )
        routing = self.linear(f"{name}.{router}", f"{packed}.router", self.family.in_turns)
        if not self.config.shared_intermediate:
            return Experts(routing, gates, ups, downs)
        shared, both = f"{name}.mlp.shared_expert", f"{packed}.shared.gate_up_proj"
        whole = (
            self.linear(f"{shared}.gate_proj", both),
            self.linear(f"{shared}.up_proj", both),
            self.linear(f"{shared}.down_proj", f"{packed}.shared.down_proj"),
        )
        return Experts(routing, gates, ups, downs, whole, self.linear(f"{shared}_gate", f"{packed}.shared_gate"))

    def of_experts(self, name: str, index: int, of: int) -> list[tuple[str, Matrix, Matrix | None]]:
        """Return module, matrix and bias of each expert; a stack has ``of`` matrices each, here number ``index``."""
        module, count = name.removesuffix(".weight"), self.config.experts
        if "{}" in name:
            return [(module.format(expert), self.real(name.format(expert)), None) for expert in range(count)]
        whole = self.real(name)
        if self.family.in_turns:
            mine = whole.reshape(count, -1, whole.shape[-1])[:, index % of :: of]
            biases = self.real(f"{name}_bias").reshape(count, -1)[:, index % of :: of]
            return [(f"{module}[{at}]", mine[at], biases[at]) for at in range(count)]
        stack = whole.reshape(count * of, -1, whole.shape[-1])
        rows = stack.shape[1]
        return [
            (f"{module}[{at * rows}:{(at + 1) * rows}]", stack[at], None) for at in range(index % of, count * of, of)
        ]

    def joined(self, module: str, parts: dict[str, int], fused: str, packed: str, bias: bool) -> list[Linear]:
        """Return the matrices of ``parts`` (name: rows), which a fused family takes from the rows of ``fused``."""
        if not self.family.fused:
            return [self.linear(f"{module}.{part}", packed, bias) for part in parts]
        whole, edges = self.real(f"{module}.{fused}.weight"), np.cumsum([0, *parts.values()]).tolist()
        return [
            self.fed(whole[begin:end], packed, name=f"{module}.{fused}[{begin}:{end}]")
            for begin, end in pairwise(edges)
        ]

    def linear(self, name: str, packed: str, bias: bool = False) -> Linear:
        return self.fed(self.real(f"{name}.weight"), packed, self.real(f"{name}.bias") if bias else None, name)

    def fed(self, matrix: Matrix, packed: str, bias: Matrix | None = None, name: str = "") -> Linear:
        how = self.rounding(packed)
        return Linear(matrix, bias, how is not None, name, how or PLAIN)

    def norm(self, name: str | None) -> Matrix | None:
        return None if name is None else self.required_norm(name)

    def required_norm(self, name: str) -> Matrix:
        """Return the weight of a norm, (size,), or of a LayerNorm its weight and its bias, (2, size)."""
        weight = self.real(f"{name}.weight") + self.family.offset
        return np.stack([weight, self.real(f"{name}.bias")]) if self.family.layer_norm else weight

    def real(self, name: str) -> Matrix:
        return self.read(name).astype(np.float64, copy=False)
