"""Loading and converting adapters with the plugins that are installed, as engines and commands do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from goldens.adapted import Adapted
from infeng_peft import conversion
from infeng_peft.conversion import AdapterConversion

from infeng_core.formats.adapters import load
from infeng_core.formats.adapters.packed import PackedAdapter
from infeng_core.formats.loader import load as load_model
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins


@cache
def plugins() -> Plugins:
    return Plugins.discover(load_config(None, environ={}))


def load_adapter(*given: Any, **more: Any) -> PackedAdapter:
    return load.load_adapter(*given, providers=plugins(), **more)


def convert_adapter(*given: Any, **more: Any) -> AdapterConversion:
    return conversion.convert_adapter(*given, providers=plugins(), **more)


def bases_in(folder: Path) -> Callable[[Adapted, str], LoadedModel]:
    """Return what gives the models under the goldens' adapters, written into ``folder``: ``bases(case, format)``."""
    made: dict[tuple[str, str], LoadedModel] = {}

    def base(case: Adapted, format: str) -> LoadedModel:
        key = case.base.name, format
        if key not in made:
            directory = case.base.write(folder / case.base.name)
            config = load_config(None, overrides={"model.format": format, "model.formats": {"embed": format}})
            made[key] = load_model(directory, config, plugins(), progress=False)
        return made[key]

    return base
