"""An extension module held against its .pyi: the same names, members, fields and parameters."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

Parameters = list[tuple[str, bool]]
"""Of a function, in order: (name, whether it has a default), and ("*", False) before those by name alone."""

UNNAMED = "arg"  # what pybind11 calls a parameter without a name, with its number behind it


def differences(module: ModuleType, stub: Path) -> list[str]:
    """Return where a module and its stub differ, each as a sentence."""
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    told = dict(_members(tree.body))
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    wrong = list(_missing("module", found, told))
    for name in sorted(told.keys() & found.keys()):
        node, value = told[name], found[name]
        if isinstance(node, ast.ClassDef) and hasattr(value, "_fields"):
            fields = tuple(name for name, _ in _members(node.body))
            wrong += [f"{name}: has the fields {value._fields}, not {fields}"] if fields != value._fields else []
        elif isinstance(node, ast.ClassDef) and value.__module__ == module.__name__:
            wrong += _class_differences(name, node, value)
        elif isinstance(node, ast.FunctionDef):
            wrong += _parameter_differences(name, node, value)
    return wrong


def _class_differences(name: str, node: ast.ClassDef, kind: type) -> Iterator[str]:
    told = dict(_members(node.body))
    found = {key: value for key, value in vars(kind).items() if not key.startswith("_")}
    plain = [key for key in told if not key.startswith("_")]
    yield from _missing(name, found, plain)
    for key, member in told.items():
        if isinstance(member, ast.FunctionDef) and (key in found or key == "__init__"):
            yield from _parameter_differences(f"{name}.{key}", member, getattr(kind, key))


def _missing(where: str, found: Collection[str], told: Collection[str]) -> Iterator[str]:
    yield from (f"{where}: the stub lacks {name}" for name in sorted(set(found) - set(told)))
    yield from (f"{where}: there is no {name}" for name in sorted(set(told) - set(found)))


def _parameter_differences(name: str, node: ast.FunctionDef, function: object) -> Iterator[str]:
    if node.args.kwarg is not None:
        return  # checked by what is called
    told, found = _told(node), _built(inspect.getdoc(function) or "")
    pairs = list(zip(told, found, strict=False))
    if len(told) != len(found) or any(a != b for a, b in pairs if not b[0].startswith(UNNAMED)):
        yield f"{name}: takes {found}, the stub says {told}"


def _told(node: ast.FunctionDef) -> Parameters:
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    first = len(plain) - len(args.defaults)
    made = [(one.arg, index >= first) for index, one in enumerate(plain)]
    named = [(one.arg, default is not None) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return [one for one in [*made, *([("*", False)] if named else []), *named] if one[0] != "self"]


def _built(doc: str) -> Parameters:
    """Return the parameters of the line with which pybind11 begins a docstring; its defaults need not be Python."""
    line = doc.split("\n")[0]
    text, depth, parts = line[line.index("(") + 1 :], 0, [""]
    for letter in text:
        depth += (letter in "[(<{") - (letter in "])>}")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    found = [(part.split(":")[0].strip(), "=" in part) for part in parts if part.strip()]
    return [(name, default) for name, default in found if name != "self"]


def _members(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield what a stub declares, by name; other names for types are none of the module's."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname, node) for alias in node.names if alias.asname == alias.name)
