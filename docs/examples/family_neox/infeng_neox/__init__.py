"""GPT-NeoX and Pythia: LayerNorm, biases on all linears, heads rotated in part, an MLP of GELU without a gate.

GPT-NeoX-20B (Black et al., 2022) and Pythia (Biderman et al., 2023); ``models/gpt_neox/modeling_gpt_neox.py`` of
transformers. ``keys`` reads config.json, ``tensors`` says where each tensor comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infeng_core.api import hookimpl
from infeng_core.api.formats import Fields, Graph, Layout, Linear, ModelConfig, Op, decoder_graph
from infeng_neox import keys, tensors

PARALLEL, SEQUENTIAL = "gpt_neox", "gpt_neox_sequential"


@dataclass(frozen=True)
class NeoX:
    """The family. ModelConfig has no field for the kind of its residuals, so it is a field of the family's own.

    Before there were such fields, the kind was told by the name of the family. A model that was converted then has
    no own field, and the family of the second name, which no config.json names, reads it as sequential.
    """

    FAMILY: str
    ARCHITECTURES: tuple[str, ...] = ()
    DEFAULTS: Mapping[str, Any] = field(default_factory=lambda: keys.DEFAULTS)
    ROTATES_PART = True

    def own(self, fields: Fields) -> dict[str, Any]:
        """Read the fields that ModelConfig lacks."""
        return {"parallel_residual": fields.flag("parallel_residual", self.FAMILY == PARALLEL)}

    def terms(self, fields: Fields, config: ModelConfig) -> dict[str, Any]:
        """Read the keys that a Llama does not have."""
        own = {"parallel_residual": fields.flag("use_parallel_residual", self.FAMILY == PARALLEL)}
        return {**keys.terms(fields, config), "own": own}

    def weights(self, config: ModelConfig) -> Layout:
        """Return the tensors under the names that checkpoints have."""
        return tensors.layout(config)

    def graph(self, config: ModelConfig) -> Graph:
        """Return x + attention(norm(x)) + mlp(norm'(x)) for each layer, or with sequential residuals Llama's order."""
        made = decoder_graph(config)
        return replace(made, ops=parallel(made.ops)) if config.own["parallel_residual"] else made


def parallel(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return the ops of sequential residuals with each MLP's norm before its layer adds attention to the residuals.

    The norm then reads what attention read. Nothing else differs: the MLP reads the norm's output, and both results
    are added to ``hidden``.
    """
    found = list(ops)
    for place, op in enumerate(ops):
        if isinstance(op, Linear) and op.weight.endswith(".o_proj"):
            found[place], found[place + 1] = ops[place + 1], op
    return tuple(found)


@hookimpl
def infeng_model_families() -> dict[str, NeoX]:
    """Return both families by their names."""
    return {PARALLEL: NeoX(PARALLEL, ("GPTNeoXForCausalLM",)), SEQUENTIAL: NeoX(SEQUENTIAL)}
