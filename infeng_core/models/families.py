"""The model families that this engine runs: every module of this folder that has ``FAMILY`` is one; plugins bring more.

A family holds ``FAMILY`` (``model_type`` of its config.json), ``ARCHITECTURES`` (the class names that config.json
lists) and ``graph(config)``; one whose checkpoint names or joins tensors otherwise also defines ``weights(config)``
(see ``infeng_core.models.weights``), one with terms that a Llama has not ``terms(fields, config)``, which returns
fields of ModelConfig, one that does not run every config.json of its kind ``check(fields)``, which raises ModelError.
``DEFAULTS`` are keys that config.json may leave out, ``STATES`` keys which say what the family does anyway, with the
values that they may have. ``ROPE`` are the parameters of a file without any, ``ROPE_NAMES`` kinds of rope under other
names, ``ROTATES_PART`` says that a part of a head may be rotated, ``SCALES_Q`` that q is scaled by its position.
``WRAPPERS`` names multimodal classes around a text model of the family, ``TEXT_TYPES`` what ``model_type`` may call it
there, with the defaults that this brings (``infeng_core.models.multimodal``), ``MODULES`` what adapters may call modules
(the wheel infeng-peft). So adding a family adds one file.
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
    """What a module or an object must have to be a family; plugins register theirs by ``infeng_model_families``."""

    @property
    def FAMILY(self) -> str:  # noqa: N802
        """``model_type`` of its config.json."""

    @property
    def ARCHITECTURES(self) -> tuple[str, ...]:  # noqa: N802
        """The class names that config.json lists."""

    def graph(self, config: Any) -> Graph:
        """Return the forward pass of a model of this shape, a ModelConfig: which itself asks the families."""


added: dict[str, Any] = {}
"""Those of plugins, for every engine of this process."""


def families() -> Mapping[str, Any]:
    """Return the families by their ``FAMILY`` name, sorted."""
    return MappingProxyType(dict(sorted({**builtin(), **added}.items())))


def add(found: Mapping[str, Family]) -> None:
    """Add the families of plugins for every engine of this process; raises PluginError for a name that is taken."""
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
