"""A model family: Llama's blocks under other names, its config.json says RenamedForCausalLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infeng_core.api import hookimpl
from infeng_core.api.formats import Graph, Layout, ModelConfig, Part, decoder, decoder_graph


@dataclass(frozen=True)
class Renamed:
    """The family: ``graph`` says what is computed, ``weights`` where each tensor comes from."""

    prefix: str
    FAMILY = "renamed"
    ARCHITECTURES = ("RenamedForCausalLM",)

    def graph(self, config: ModelConfig) -> Graph:
        """Return Llama's forward pass."""
        return decoder_graph(config)

    def weights(self, config: ModelConfig) -> Layout:
        """Return Llama's tensors under the names that this family's checkpoints have."""
        plain = decoder(config)
        tensors = tuple(replace(spec, parts=self._named(spec.parts)) for spec in plain.tensors)
        return Layout(tensors, tuple(replace(spec, parts=self._named(spec.parts)) for spec in plain.vectors))

    def _named(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(replace(part, source=re.sub(r"^model\.", f"{self.prefix}.", part.source)) for part in parts)


@hookimpl
def infeng_model_families(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the family by its ``model_type``."""
    return {"renamed": Renamed(settings["prefix"])}
