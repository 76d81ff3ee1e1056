"""The parts of plugins that reading models and adapters uses, and the core's own for use without plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from infeng_core.errors import UsageError, unknown_key_remedy
from infeng_core.formats.quant import BUILTIN, VARIANTS
from infeng_core.models import families
from infeng_core.plug.hookspecs import MODEL_FAMILIES, QUANT_FORMATS, Hook

T = TypeVar("T")


class Providers(Protocol):
    """The plugins of an engine, as far as files are concerned: ``Plugins``, or fewer."""

    def get(self, hook: Hook[T], name: str) -> T:
        """Return the part called ``name``, or its factory; raises an InfengError that lists the known names."""

    def each(self, hook: Hook[T]) -> Iterator[tuple[str, T]]:
        """Yield parts, or their factories, with their names; each plugin is imported at its turn."""

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return the remedy for a file or a name without a reader: the wheel to install; "" if none is known.

        kind: of the reader, "model_readers" or "adapter_readers".
        is_there: whether the reference is an existing path that is not engine-native.
        """


class Core:
    """The core without any plugin."""

    def parts(self, hook: Hook[Any]) -> Mapping[str, Any]:
        """Return the parts of a kind, or their factories, by name."""
        return {MODEL_FAMILIES: families.builtin(), QUANT_FORMATS: {**BUILTIN, **VARIANTS}}.get(hook, {})

    def get(self, hook: Hook[Any], name: str) -> Any:
        """Return a part; raises UsageError with the known names."""
        known = self.parts(hook)
        if name not in known:
            raise UsageError(f"{hook.singular} {name}", "unknown", unknown_key_remedy(name, known))
        return known[name]

    def each(self, hook: Hook[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the parts with their names; engine-native models and adapters need no reader."""
        yield from self.parts(hook).items()

    def missing_wheel(self, reference: str, kind: str = "model_readers", *, is_there: bool = False) -> str:
        """Return "": only plugins know the wheels."""
        return ""


CORE: Providers = Core()
