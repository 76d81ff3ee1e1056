"""From a checkpoint's tensors to the matrices of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .llama import Layer, Linear, Weights

if TYPE_CHECKING:
    from infeng_core.api import LoadedModel, ModelConfig

Read = Callable[[str], NDArray[Any]]
"""Returns a tensor of the checkpoint by its name, (outputs, inputs) or (outputs,); of tied embeddings, either name."""


def dequantized(model: LoadedModel) -> Weights:
    """Return the numbers that a loaded model computes with, its quantized weights dequantized."""
    return arrange(model.config, model.matrix, lambda packed: not model.tensors[packed].quant.is_float)


def arrange(config: ModelConfig, read: Read, has_int8_input: Callable[[str], bool] = lambda packed: False) -> Weights:
    """Return the weights of a Llama or Qwen2 in binary64.

    ``has_int8_input`` says of a packed tensor (``infeng_core.models.weights`` names them) whether the kernels feed it
    with int8 activations.
    """

    def real(name: str) -> NDArray[np.float64]:
        return read(name).astype(np.float64)

    def linear(name: str, packed: str, bias: bool = False) -> Linear:
        return Linear(real(f"{name}.weight"), real(f"{name}.bias") if bias else None, has_int8_input(packed), name)

    qwen2 = config.family == "qwen2"  # whose biases no field of the configuration names
    qkv_bias, o_bias = config.attention_bias or qwen2, config.attention_bias and not qwen2

    def layer(index: int) -> Layer:
        name, packed = f"model.layers.{index}", f"layers.{index}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            attn_norm=real(f"{name}.input_layernorm.weight"),
            q=linear(f"{attention}.q_proj", f"{packed}.qkv_proj", qkv_bias),
            k=linear(f"{attention}.k_proj", f"{packed}.qkv_proj", qkv_bias),
            v=linear(f"{attention}.v_proj", f"{packed}.qkv_proj", qkv_bias),
            o=linear(f"{attention}.o_proj", f"{packed}.o_proj", o_bias),
            mlp_norm=real(f"{name}.post_attention_layernorm.weight"),
            gate=linear(f"{mlp}.gate_proj", f"{packed}.gate_up_proj", config.mlp_bias),
            up=linear(f"{mlp}.up_proj", f"{packed}.gate_up_proj", config.mlp_bias),
            down=linear(f"{mlp}.down_proj", f"{packed}.down_proj", config.mlp_bias),
        )

    tied = config.tie_embeddings
    head = linear("model.embed_tokens" if tied else "lm_head", "embed" if tied else "lm_head")
    return Weights(
        embed=real("model.embed_tokens.weight"),
        layers=[layer(index) for index in range(config.layers)],
        norm=real("model.norm.weight"),
        head=replace(head, name="lm_head"),
    )
