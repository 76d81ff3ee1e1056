"""Names of other modules that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any


class Names:
    """The names of one module, each with the module that it comes from.

    The stub beside the module lists the same for type checkers; a test compares them.
    """

    def __init__(
        self,
        module: str,
        homes: Mapping[str, Sequence[str]],
        renamed: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """Take each home with its names, and names that are called otherwise at home: (home, name there)."""
        self._module = module
        self._homes = {name: (home, name) for home, names in homes.items() for name in names} | dict(renamed)

    def all(self) -> list[str]:
        """Return the names."""
        return sorted(self._homes)

    def homes(self) -> Mapping[str, tuple[str, str]]:
        """Return the module that each name comes from, and the name there."""
        return self._homes

    def imported(self, name: str) -> Any:
        """Import a name and keep it in the module, whose ``__getattr__`` this is."""
        if name not in self._homes:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        home, there = self._homes[name]
        module = import_module(home)
        value = getattr(module, there) if hasattr(module, there) else import_module(f"{home}.{there}")
        setattr(sys.modules[self._module], name, value)
        return value
