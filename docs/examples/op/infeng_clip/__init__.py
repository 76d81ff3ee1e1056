"""A model family with the op of the library beside this file: Llama whose MLP clips what goes into its last linear.

    mlp(x) = down(clip(silu(gate(x)) * up(x), gain))

Checkpoints have `model.layers.i.mlp.gain.weight` besides Llama's tensors, and ClipForCausalLM in config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infeng_core.api import hookimpl
from infeng_core.api.formats import (
    Graph,
    Layout,
    Linear,
    ModelConfig,
    Op,
    Part,
    RowOp,
    VectorSpec,
    decoder,
    decoder_graph,
)


@dataclass(frozen=True)
class Clipped:
    """The family: ``graph`` says what is computed, ``weights`` where each tensor comes from."""

    limit: float
    FAMILY = "clip"
    ARCHITECTURES = ("ClipForCausalLM",)

    def graph(self, config: ModelConfig) -> Graph:
        """Return Llama's forward pass with the op before the last linear of each MLP."""
        plain = decoder_graph(config)
        ops: list[Op] = []
        for op in plain.ops:
            if isinstance(op, Linear) and op.weight.endswith(".down_proj"):
                gain = f"{op.weight.removesuffix('.down_proj')}.gain"
                ops.append(RowOp("clip", op.x, "clipped", {"gain": gain, "limit": self.limit}))
                op = replace(op, x="clipped")
            ops.append(op)
        return Graph({**plain.values, "clipped": plain.values["gated"]}, tuple(ops), plain.logits)

    def weights(self, config: ModelConfig) -> Layout:
        """Return Llama's tensors and the gains."""
        plain, size = decoder(config), config.intermediate
        gains = [
            VectorSpec(f"layers.{i}.gain", size, (Part(f"model.layers.{i}.mlp.gain.weight", size),))
            for i in range(config.layers)
        ]
        return Layout(plain.tensors, (*plain.vectors, *gains))


@hookimpl
def infeng_model_families(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the family by its ``model_type``."""
    return {"clip": Clipped(settings["limit"])}
