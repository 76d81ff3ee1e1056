"""The modules that an adapter can change, by PEFT name, and their places in packed tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from infeng_core.formats.tensors import LoadedModel, PackedTensor
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import PANEL_ROWS, Part, TensorSpec, layout

HEAD, EMBED = "lm_head", "embed"


@dataclass(frozen=True)
class TargetModule:
    """A module with a matrix: rows [0, part.rows) of ``tensor``, placed as ``part`` says, over ``k`` inputs."""

    module: str  # "model.layers.0.self_attn.q_proj", or with the rows that are packed here: "mlp.gate_up_proj[0:64]"
    tensor: str  # "layers.0.qkv_proj"; "lm_head" even where the head is tied
    part: Part
    k: int
    kind: Literal["linear", "head", "embedding"]
    is_expert: bool = False  # of a mixture; ``tensor`` is the expert's, "layers.0.experts.down_proj[3]"

    @property
    def target(self) -> str:
        """The module's name in PEFT; it may have rows at other sites too."""
        return self.part.source.removesuffix(".weight") if self.part.of else self.module

    @property
    def rows(self) -> slice:
        """The module's rows at this site."""
        return slice(self.part.begin, self.part.begin + self.part.rows)


@dataclass(frozen=True)
class TargetModules:
    """The modules of a model by PEFT name."""

    matrices: Mapping[str, TargetModule]  # in the order of the packed tensors and of the parts in them
    norms: Mapping[str, tuple[str, int]]  # those without a bias: (our vector, its size)
    biased: frozenset[str]  # the modules that have a bias
    specs: Mapping[str, TensorSpec]  # the packed tensors by name, "lm_head" always among them

    def modules(self) -> set[str]:
        """Return every module's name, including modules that only contain others."""
        leaves = {*(site.target for site in self.matrices.values()), *self.norms, *self.biased}
        return {
            ".".join(parts[:end]) for parts in (name.split(".") for name in leaves) for end in range(1, len(parts) + 1)
        }


@lru_cache(maxsize=16)
def target_modules(config: ModelConfig) -> TargetModules:
    """Return the modules that adapters can change in a model of this shape."""
    made = layout(config)
    matrices: dict[str, TargetModule] = {}
    specs = {one.name: one for spec in made.tensors for one in (spec.each() or (spec,))}
    of_experts = {one.name for spec in made.tensors for one in spec.each()}
    if HEAD not in specs:
        embed = specs[EMBED]
        specs[HEAD] = TensorSpec(HEAD, embed.k, (Part(f"{HEAD}.weight", embed.parts[0].rows),))
    for spec in specs.values():
        for part in spec.parts:
            module = part.module
            kind: Literal["linear", "head", "embedding"] = "linear"
            if spec.name in (HEAD, EMBED):
                kind = "head" if spec.name == HEAD else "embedding"
            matrices[module] = TargetModule(module, spec.name, part, spec.k, kind, spec.name in of_experts)
    names = {vector.name for vector in made.vectors}
    norms = {
        vector.parts[0].source.removesuffix(".weight"): (vector.name, vector.size)
        for vector in made.vectors
        if len(vector.parts) == 1 and vector.parts[0].source.endswith(".weight") and f"{vector.name}.bias" not in names
    }
    vectors = [part.source for vector in made.vectors for part in vector.parts]
    biased = frozenset(source.removesuffix(".bias") for source in vectors if source.endswith(".bias"))
    return TargetModules(MappingProxyType(matrices), MappingProxyType(norms), biased, MappingProxyType(specs))


def base_tensor(model: LoadedModel, name: str) -> PackedTensor:
    """Return the base's packed tensor; the head of a model with tied embeddings is ``embed``.

    The tensor of one expert is a view of the tensor of all experts.
    """
    stem, bracket, expert = name.rstrip("]").partition("[")
    if bracket:
        whole = model.tensors[stem]
        panels = whole.panels // model.config.experts
        begin = whole.offset + int(expert) * panels * whole.panel_bytes
        return replace(whole, name=name, n=panels * PANEL_ROWS, panels=panels, offset=begin)
    return model.tensors[name] if name in model.tensors else model.tensors[EMBED]
