"""From the engine's packed tensors to the matrices of the model, as a checkpoint names and shapes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .llama import Layer, Linear, Real, Weights

if TYPE_CHECKING:
    from infeng_core.formats import LoadedModel

PANEL = 16  # outputs of a panel; a part of a joined tensor starts on a panel
INT8_INPUT = {"int8-row", "int4-g64", "int4-g32"}  # formats that the kernels multiply with int8 activations


def unpack(model: LoadedModel) -> Weights:
    """Dequantize every weight of the model to binary64."""
    return _Reader(model).weights()


class _Reader:
    """Cuts the joined tensors of one model apart."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._config = model.config

    def weights(self) -> Weights:
        embed = self._matrix("embed")  # (vocab, hidden)
        head_name = "embed" if self._config.tie_embeddings else "lm_head"
        head = embed if self._config.tie_embeddings else self._matrix(head_name)  # (vocab, hidden)
        return Weights(
            embed=embed[: self._config.vocab],
            layers=[self._layer(f"layers.{i}") for i in range(self._config.layers)],
            norm=self._vector("norm"),
            head=Linear(head[: self._config.vocab], None, self._int8_input(head_name)),
        )

    def _layer(self, name: str) -> Layer:
        c = self._config
        q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
        k_start = _round_up(q_rows)
        v_start = k_start + _round_up(kv_rows)
        gate_up = np.arange(2 * _round_up(c.intermediate)).reshape(-1, 2, PANEL)  # (panels of each, gate or up, PANEL)
        return Layer(
            attn_norm=self._vector(f"{name}.attn_norm"),
            q=self._linear(f"{name}.qkv_proj", np.arange(q_rows)),
            k=self._linear(f"{name}.qkv_proj", k_start + np.arange(kv_rows)),
            v=self._linear(f"{name}.qkv_proj", v_start + np.arange(kv_rows)),
            o=self._linear(f"{name}.o_proj", np.arange(c.hidden)),
            mlp_norm=self._vector(f"{name}.mlp_norm"),
            gate=self._linear(f"{name}.gate_up_proj", gate_up[:, 0].ravel()[: c.intermediate]),
            up=self._linear(f"{name}.gate_up_proj", gate_up[:, 1].ravel()[: c.intermediate]),
            down=self._linear(f"{name}.down_proj", np.arange(c.hidden)),
        )

    def _linear(self, name: str, columns: np.ndarray) -> Linear:
        """Return the outputs ``columns`` of a packed tensor with their bias."""
        bias = self._model.vectors.get(f"{name}.bias")
        return Linear(
            weight=self._matrix(name)[columns],
            bias=None if bias is None else bias[columns].astype(np.float64),
            int8_input=self._int8_input(name),
        )

    def _matrix(self, name: str) -> Real:
        return self._model.tensors[name].dequantize().astype(np.float64)  # (outputs, inputs)

    def _vector(self, name: str) -> Real:
        return self._model.vectors[name].astype(np.float64)

    def _int8_input(self, name: str) -> bool:
        return self._model.tensors[name].format in INT8_INPUT


def _round_up(rows: int) -> int:
    return -(-rows // PANEL) * PANEL
