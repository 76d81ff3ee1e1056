"""No module uses a private name of another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("infeng_core/**/*.py"), *ROOT.glob("plugins/*/infeng_*/**/*.py")])

ALLOWED = {
    "infeng_core": {"infeng_core._native", "_thread"},  # a thread whose start no interrupt can leave half done
    "infeng_calibrate": {"infeng_calibrate._native"},
    "infeng_packing": {"infeng_packing._native"},
    "infeng_peers": {"ik_llama_cpp._ctypes_api"},  # the only binding of its C interface
}
"""Private modules that a package may import: its own extension module, and what has no public face."""

OFFERED = {"_asdict", "_fields", "_make", "_replace", "_exit"}
"""Public names of typing.NamedTuple and os that begin with an underscore."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in OFFERED


@lru_cache(maxsize=1)
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return those of a module that can have or use a name, in order."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.Attribute, ast.Call)
    return [node for node in ast.walk(tree) if isinstance(node, (*kinds, ast.Import, ast.ImportFrom))]


def defined(tree: ast.AST) -> set[str]:
    """Return every name that a module, or a class of it, gives a meaning."""
    names = set()
    for node in nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[_, ast.Constant(value=str(name)), _]):
                names.add(name)  # how a frozen class sets its own
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="vars")), attr="update"), keywords=more):
                names.update(str(keyword.arg) for keyword in more)
    return names


def private_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of each private module, or private name of a module, that is imported."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            if any(map(is_private, (node.module or "").split("."))):
                yield "." * node.level + str(node.module)
            else:
                stem = "." * node.level + (f"{node.module}." if node.module else "")
                yield from (stem + alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if any(map(is_private, alias.name.split("."))))


def private_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield the private attributes that are used and that the module itself does not define."""
    own = defined(tree) | {name.rpartition(".")[2] for name in private_modules(tree)}
    for node in nodes(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield ast.unparse(node)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, ast.Constant(name), *_]
            ):
                if isinstance(name, str) and is_private(name) and name not in own:
                    yield ast.unparse(node)


@cache
def used(path: Path) -> tuple[set[str], list[str]]:
    """Return the private modules and the foreign private attributes that a file uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {*private_modules(tree)}, list(private_attributes(tree))


def package(path: Path) -> str:
    return next(part for part in path.relative_to(ROOT).parts if part.startswith("infeng_"))


def test_no_module_uses_a_private_name_of_another():
    wrong = []
    for path in SOURCES:
        modules, attributes = used(path)
        names = (*(modules - ALLOWED.get(package(path), set())), *attributes)
        wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names]
    assert len(SOURCES) > 100
    assert not wrong


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_every_exception_is_needed(name):
    assert ALLOWED[name] <= {module for path in SOURCES if package(path) == name for module in used(path)[0]}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from json import _default_decoder", {"json._default_decoder"}),
        ("from .scheduler import _Queue", {".scheduler._Queue"}),
        ("from . import _queue", {"._queue"}),
        ("from infeng_core._native import Pool", {"infeng_core._native"}),
        ("def use():\n    import re._parser as parser", {"re._parser"}),
        ("from __future__ import annotations\nimport json\nfrom json import __version__", set()),
    ],
)
def test_a_private_import_is_seen(code, found):
    assert set(private_modules(ast.parse(code))) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("engine._scheduler.add(1)", ["engine._scheduler"]),
        ("def use(engine):\n    engine._scheduler = None", ["engine._scheduler"]),
        ("getattr(engine, '_scheduler')", ["getattr(engine, '_scheduler')"]),
        ("class Child(Base):\n    def use(self):\n        return self._of_base", ["self._of_base"]),
        ("class One:\n    def __init__(self, other):\n        self._x = other._x", []),
        ("class One:\n    _x: int\ndef use(one):\n    return one._x", []),
        ("def make(self):\n    object.__setattr__(self, '_x', 1)\n    return self._x", []),
        ("def make(self):\n    vars(self).update(_x=1)\n    return self._x", []),
        ("from infeng_core import _native\n_native.pack()\nuse._replace(a=1)\nx.__class__", []),
    ],
)
def test_a_private_attribute_of_something_foreign_is_seen(code, found):
    assert list(private_attributes(ast.parse(code))) == found
