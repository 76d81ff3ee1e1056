"""The model families of the engine by name: the core's own, and families of plugins.

A family defines ``FAMILY`` (``model_type`` of its config.json), ``ARCHITECTURES`` (the class names that config.json
lists), ``graph(config)``, and optionally ``weights(config)``: tensors that a checkpoint names or joins otherwise than
``infeng_core.models.weights.decoder``, and ``own(fields)``: what a model of the family has beside the fields of
ModelConfig. It reads each such field with its type, its bounds and its default, and returns them by name; the family's
other functions find them in ``config.own``. The wheel infeng-convert reads its config.json.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

from infeng_core.errors import PluginError
from infeng_core.models.ops import Graph


class Family(Protocol):
    """The required members of a family, as a module or an object; ``infeng_model_families`` registers a plugin's."""

    @property
    def FAMILY(self) -> str:  # noqa: N802
        """``model_type`` of its config.json."""

    @property
    def ARCHITECTURES(self) -> tuple[str, ...]:  # noqa: N802
        """The class names that config.json lists."""

    def graph(self, config: Any) -> Graph:
        """Return the forward pass for ``config``, a ModelConfig (untyped here, since that module imports this one)."""


added: dict[str, Any] = {}
"""Families of plugins, for every engine of this process."""


def families() -> Mapping[str, Any]:
    """Return the families by their ``FAMILY`` name, sorted."""
    return MappingProxyType(dict(sorted({**builtin(), **added}.items())))


def add(found: Mapping[str, Family]) -> None:
    """Add the families of plugins for every engine of this process; raises PluginError for a name in use."""
    for name, family in found.items():
        if builtin().get(name) is family:
            continue
        architectures = {word for other, one in families().items() if other != name for word in one.ARCHITECTURES}
        if name != family.FAMILY or name in builtin() or architectures & set(family.ARCHITECTURES):
            why = f"it calls itself {family.FAMILY}, for {', '.join(family.ARCHITECTURES)}: taken, or not as promised"
            raise PluginError(f"model family {name}", why, "list the plugin in plugins.disable")
        added[name] = family


@cache
def builtin() -> Mapping[str, Family]:
    """Return the families of the core."""
    found = importlib.import_module("infeng_core.models.builtin_families").FAMILIES  # which imports this module
    return MappingProxyType({family.FAMILY: family for family in found})


def describe() -> str:
    """Return the supported families in words, such as "llama (LlamaForCausalLM)"."""
    return ", ".join(
        f"{name} ({', '.join(family.ARCHITECTURES)})" for name, family in families().items() if family.ARCHITECTURES
    )
