"""The parts of plugins that reading models and adapters uses, and the core's own for use without plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.converters import Converter
from infeng_core.formats.locators import Locator
from infeng_core.formats.quant import QuantFormat, builtin_format
from infeng_core.models import families


class Providers(Protocol):
    """The plugins of an engine, as far as files are concerned. Readers and locators are imported one by one."""

    def model_families(self) -> Mapping[str, families.Family]:
        """Return the families by their ``model_type``."""

    def converters(self) -> Iterator[tuple[str, Callable[[Any, Any], Converter]]]:
        """Yield the names and factories of converters; a factory takes a configuration and these plugins."""

    def adapter_readers(self) -> Iterator[tuple[str, AdapterReader]]:
        """Yield the readers of adapter files with their names."""

    def locators(self) -> Iterator[tuple[str, Locator]]:
        """Yield the locators with their names, the project's last, because their names have the simplest form."""

    def quant_format(self, name: str) -> QuantFormat:
        """Return a weight format by name; raises an InfengError that lists the known ones."""

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return the remedy for a file or a name without a reader: the wheel to install; "" if none is known.

        kind: of the reader, "model_readers" or "adapter_readers".
        is_there: whether the reference is an existing path that is not engine-native.
        """


class Core:
    """The core without any plugin."""

    def model_families(self) -> Mapping[str, families.Family]:
        """Return the families of the core."""
        return families.builtin()

    def converters(self) -> Iterator[tuple[str, Callable[[Any, Any], Converter]]]:
        """Yield nothing."""
        yield from ()

    def adapter_readers(self) -> Iterator[tuple[str, AdapterReader]]:
        """Yield nothing: artifacts need no reader."""
        yield from ()

    def locators(self) -> Iterator[tuple[str, Locator]]:
        """Yield nothing."""
        yield from ()

    def quant_format(self, name: str) -> QuantFormat:
        """Return a weight format of the core."""
        return builtin_format(name)

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return "": only plugins know the wheels."""
        return ""


CORE: Providers = Core()
