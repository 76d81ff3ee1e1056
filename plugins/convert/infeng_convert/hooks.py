"""The plugin's hooks. Each part is imported when its hook is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_convert.interfaces.quantizers import Quantizer
    from infeng_convert.interfaces.readers import ModelReader
    from infeng_core.api import Command, ConverterFactory
    from infeng_core.api.formats import Locator


@hookimpl
def infeng_converters() -> dict[str, ConverterFactory]:
    """Return the converter to engine-native directories."""
    from infeng_convert.converter import ArtifactConverter

    return {"artifacts": ArtifactConverter}


@hookimpl(optionalhook=True)
def infeng_model_readers() -> dict[str, ModelReader]:
    """Return the reader of Hugging Face directories."""
    from infeng_convert.checkpoints import BUILTIN

    return dict(BUILTIN)


@hookimpl(optionalhook=True)
def infeng_quantizers() -> dict[str, Quantizer]:
    """Return the rounding to nearest."""
    from infeng_convert.quantizers import DEFAULT

    return {DEFAULT.name: DEFAULT.quantizer}


@hookimpl
def infeng_locators() -> dict[str, Locator]:
    """Return the hub."""
    from infeng_convert.hub import BUILTIN

    return dict(BUILTIN)


@hookimpl
def infeng_commands() -> list[Command]:
    """Return the commands; their modules import the engine only inside ``run``."""
    from infeng_convert.cli.cache import Cache
    from infeng_convert.cli.convert import Convert
    from infeng_convert.cli.models import Models
    from infeng_convert.cli.unpack import Unpack

    return [Cache(), Convert(), Models(), Unpack()]
