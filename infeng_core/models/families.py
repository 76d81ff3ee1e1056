"""The model families of the engine: each module of this folder with a ``FAMILY`` is one, and plugins add more.

A family defines ``FAMILY`` (``model_type`` of its config.json), ``ARCHITECTURES`` (the class names that config.json
lists) and ``graph(config)``. The rest is optional:

- ``weights(config)``: tensors that the checkpoint names or joins otherwise (see ``infeng_core.models.weights``);
- ``terms(fields, config)``: returns fields of ModelConfig for keys that a Llama does not have;
- ``check(fields)``: raises ModelError for a config.json of its kind that it does not run;
- ``DEFAULTS``: keys that config.json may leave out;
- ``STATES``: keys, with their allowed values, that say what the family does in any case;
- ``ROPE``: the rope parameters of a file without any; ``ROPE_NAMES``: other names for kinds of rope;
- ``ROTATES_PART``: only a part of a head may be rotated; ``SCALES_Q``: q is scaled by its position;
- ``WRAPPERS``: multimodal classes around a text model of the family; ``TEXT_TYPES``: the values of ``model_type``
  there, each with the defaults that it implies (``infeng_core.models.multimodal``);
- ``MODULES``: other names of modules in adapters (the wheel infeng-peft).

So adding a family adds one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

import infeng_core.models
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
    """Return the families of this folder."""
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(infeng_core.models.__path__):
        module = importlib.import_module(f"infeng_core.models.{info.name}")
        if hasattr(module, "FAMILY"):
            found[module.FAMILY] = module
    return MappingProxyType(found)


def describe() -> str:
    """Return the supported families in words, such as "llama (LlamaForCausalLM)"."""
    return ", ".join(f"{name} ({', '.join(family.ARCHITECTURES)})" for name, family in families().items())
