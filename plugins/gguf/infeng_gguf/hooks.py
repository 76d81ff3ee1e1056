"""What this wheel gives to the engine; the readers are imported when a hook is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    from infeng_core.api.adapters import AdapterReader
    from infeng_core.api.formats import Locator, ModelReader, ModelWriter


@hookimpl
def infeng_model_readers() -> dict[str, ModelReader]:
    """The reader of GGUF models."""
    from infeng_gguf.reader import GgufReader

    return {"gguf": GgufReader()}


@hookimpl
def infeng_model_writers() -> dict[str, ModelWriter]:
    """The writer of GGUF models."""
    from infeng_gguf.reader import GgufWriter

    return {"gguf": GgufWriter()}


@hookimpl
def infeng_adapter_readers() -> dict[str, AdapterReader]:
    """The reader of GGUF adapters."""
    from infeng_gguf.reader import GgufAdapterReader

    return {"gguf": GgufAdapterReader()}


@hookimpl
def infeng_locators() -> dict[str, Locator]:
    """GGUF files of the hub, by quantization or by file."""
    from infeng_gguf.hub import GgufLocator

    return {"gguf": GgufLocator()}
