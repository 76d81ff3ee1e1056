"""The model families that this engine runs: every module of this folder that has ``FAMILY`` is one.

A family's module holds ``FAMILY`` (``model_type`` of its config.json), ``ARCHITECTURES`` (the class names that
config.json lists) and ``graph(config)``; one whose checkpoint names or joins tensors otherwise also defines
``weights(config)`` (see ``infeng_core.models.weights``), one that does not run every config.json of its kind
``check(fields)``, which raises ModelError. So adding a family adds one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, ModuleType

import infeng_core.models


@cache
def families() -> Mapping[str, ModuleType]:
    """Return the family modules by their ``FAMILY`` name, sorted."""
    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(infeng_core.models.__path__):
        module = importlib.import_module(f"infeng_core.models.{info.name}")
        if hasattr(module, "FAMILY"):
            found[module.FAMILY] = module
    return MappingProxyType(dict(sorted(found.items())))


def describe() -> str:
    """Return the supported families in words, such as "llama (LlamaForCausalLM)"."""
    return ", ".join(f"{name} ({', '.join(module.ARCHITECTURES)})" for name, module in families().items())
