"""The hooks that a plugin's Python implements, read from its source: nothing is imported."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from infeng_core.api import InfengError, read_text, unknown_key_remedy
from infeng_core.api.inspection import HOOKS, PluginManifest, note, shortened

MOST_BYTES = 1 << 20
KNOWN = {hook.name for hook in HOOKS}


def unknown_hooks(manifest: PluginManifest) -> tuple[str, ...]:
    """Return a note for each hook that is not known here, as far as the source of the plugin's module tells.

    An implementation that is marked ``optionalhook=True`` may belong to a hook of another wheel, and has no note.
    """
    path = _source(manifest)
    if path is None:
        return ()
    try:
        tree = ast.parse(read_text(path, MOST_BYTES))
    except (InfengError, SyntaxError, ValueError, RecursionError, MemoryError):  # its import says what is wrong
        return ()
    names = sorted({name for name in _implemented(tree) if name not in KNOWN})
    return shortened([f"{path.name}: {note(f'hook {name}')}{_meant(name)}" for name in names])


def _meant(name: str) -> str:
    remedy = unknown_key_remedy(name[:100], KNOWN)
    return f" ({remedy})" if remedy.startswith("did you mean") else ""


def _source(manifest: PluginManifest) -> Path | None:
    """Return the file of the plugin's module, if it lies where most plugins have it: around its plugin.yaml."""
    if manifest.python is None:
        return None
    parts = manifest.python.split(".")
    for folder in (manifest.source.parent, manifest.source.parent.parent):
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if os.path.isfile(path):  # noqa: PTH113  # False for a name that is too long
                return path
    return None


def _implemented(tree: ast.Module) -> Iterator[str]:
    """Yield the functions of a module that implement hooks which must exist."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(_is_marker(marker) for marker in node.decorator_list):
            yield node.name


def _is_marker(marker: ast.expr) -> bool:
    """Return whether a decorator is ``hookimpl``, called or not, of a hook that is not optional."""
    called = marker.func if isinstance(marker, ast.Call) else marker
    words = {word.arg for word in marker.keywords} if isinstance(marker, ast.Call) else set()
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "hookimpl" and not words & {"optionalhook", "specname"}
