"""The names that plugins, benchmarks and servers may import; everything else may change without notice.

``__init__.pyi`` beside this file lists the names with their modules; type checkers read it too. A name is imported at
first use, so that a plugin's hooks load only the modules that they use.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """Return the module of every name, as the imports of ``__init__.pyi`` say."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    found = {alias.name: str(node.module) for node in imports for alias in node.names}
    [listed] = (node.value for node in tree.body if isinstance(node, ast.Assign))
    return {name: found[name] for name in ast.literal_eval(listed)}


def __getattr__(name: str) -> Any:
    """Import the name, once."""
    if name == "__all__":
        return list(_homes())
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_homes()[name])
    value = getattr(module, name) if hasattr(module, name) else import_module(f"{_homes()[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names."""
    return sorted(_homes())
