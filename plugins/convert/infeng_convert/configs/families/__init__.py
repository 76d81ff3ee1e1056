"""The keys of config.json that each model family reads: a module for each family of the core with keys of its own.

A module may define, and a family that a plugin brings may define as attributes of its own:

- ``terms(fields, config)``: returns fields of ModelConfig for keys that a Llama does not have; under ``own`` those that
  only the family knows, as its ``own(fields)`` reads them;
- ``check(fields)``: raises ModelError for a config.json of its kind that the family does not run;
- ``DEFAULTS``: keys that config.json may leave out;
- ``STATES``: keys, with their allowed values, that say what the family does in any case;
- ``ROPE``: the rope parameters of a file without any; ``ROPE_NAMES``: other names for kinds of rope;
- ``ROTATES_PART``: only a part of a head may be rotated; ``SCALES_Q``: q is scaled by its position;
- ``WRAPPERS``: multimodal classes around a text model of the family; ``TEXT_TYPES``: the values of ``model_type``
  there, each with the defaults that it implies (``infeng_convert.configs.multimodal``);
- ``MODULES``: other names of modules in adapters (the wheel infeng-peft).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from infeng_core.api.formats import families


def config_keys() -> Mapping[str, Any]:
    """Return for each family by name the module of this folder, or else the family itself."""
    return {**families(), **_modules()}


@cache
def _modules() -> Mapping[str, Any]:
    names = [info.name for info in pkgutil.iter_modules(__path__)]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
