"""The hooks of this wheel; readers are imported when a hook is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_convert.api import ModelReader, ModelWriter

    from infeng_core.api.adapters import AdapterReader
    from infeng_core.api.formats import Locator


@hookimpl(optionalhook=True)
def infeng_model_readers() -> dict[str, ModelReader]:
    """Return the reader of GGUF models."""
    from infeng_gguf.reader import GgufReader

    return {"gguf": GgufReader()}


@hookimpl(optionalhook=True)
def infeng_model_writers() -> dict[str, ModelWriter]:
    """Return the writer of GGUF models."""
    from infeng_gguf.reader import GgufWriter

    return {"gguf": GgufWriter()}


@hookimpl
def infeng_adapter_readers() -> dict[str, AdapterReader]:
    """Return the reader of GGUF adapters."""
    from infeng_gguf.adapter import GgufAdapterReader

    return {"gguf": GgufAdapterReader()}


@hookimpl
def infeng_locators() -> dict[str, Locator]:
    """Return the locator of GGUF files on the hub, by quantization or by file name."""
    from infeng_gguf.hub import GgufLocator

    return {"gguf": GgufLocator()}
