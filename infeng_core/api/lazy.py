"""Names of other modules that are imported when they are first asked for; a module's stub (``.pyi``) lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def attach(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a module, given its ``__name__`` and ``__file__``.

    The stub beside the module imports each name, by an absolute ``from HOME import NAME [as OTHER]``.
    """
    homes = _homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = sorted(homes)

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, there = homes[name]
        found = import_module(home)
        value = getattr(found, there) if hasattr(found, there) else import_module(f"{home}.{there}")
        setattr(sys.modules[module], name, value)
        return value

    return imported, lambda: names, names


def _homes(stub: str) -> dict[str, tuple[str, str]]:
    """Return what a stub imports: the name here, the module that it comes from, and the name there."""
    found: dict[str, tuple[str, str]] = {}
    for home, several, one in _IMPORT.findall(stub):
        for item in filter(None, map(str.strip, (several or one).split(","))):
            there, _, here = item.partition(" as ")
            found[here or there] = home, there
    return found
