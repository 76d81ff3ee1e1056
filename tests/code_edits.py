"""Edits of a function's code that match its syntax tree, independent of line numbers and formatting.

An edit names an expression or a statement by a pattern: Python in which the name ``_`` stands for any expression, and
``_a``, ``_b``, ... for one that the new code may use again. It must match exactly one node of the function.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

Captured = dict[str, ast.AST]


class NoMatchError(AssertionError):
    """The code has no such function, or an edit does not match exactly one node of it."""


@dataclass(frozen=True)
class Replace:
    """Replaces the only expression that matches ``old`` by ``new``."""

    old: str
    new: str


@dataclass(frozen=True)
class Drop:
    """Removes the only statement that matches ``old``."""

    old: str


@dataclass(frozen=True)
class Insert:
    """Inserts the statement ``new`` before the only statement that matches ``before``."""

    before: str
    new: str


Edit = Replace | Drop | Insert


def edited(source: str, qualname: str, edit: Edit) -> ast.Module:
    """Return a module with one function or class edited; raises NoMatchError that shows the code."""
    module = ast.parse(source)
    function = _definition(module, qualname)
    pattern = _pattern(edit)
    found = [(node, captured) for node in ast.walk(function) if (captured := _matched(pattern, node)) is not None]
    if len(found) != 1:
        raise NoMatchError(_said(qualname, pattern, function, len(found)))
    [(node, captured)] = found
    _Exchange(node, _made(edit, node, captured)).visit(module)
    return ast.fix_missing_locations(module)


def _pattern(edit: Edit) -> ast.AST:
    match edit:
        case Replace(old=text):
            return ast.parse(text, mode="eval").body
        case Drop(old=text) | Insert(before=text):
            [statement] = ast.parse(text).body
            return statement


def _made(edit: Edit, node: ast.AST, captured: Captured) -> list[ast.AST]:
    match edit:
        case Replace(new=text):
            made: list[ast.AST] = [ast.parse(text, mode="eval").body]
        case Drop():
            made = [ast.Pass()]
        case Insert(new=text):
            made = [*ast.parse(text).body, node]
    return [_Filled(captured).visit(one) if one is not node else one for one in made]


# ------------------------------------------------------------------------------------------------------- matching ---


def _is_hole(pattern: object) -> bool:
    return isinstance(pattern, ast.Name) and pattern.id[0] == "_" and len(pattern.id) <= 2


def _matched(pattern: object, node: object) -> Captured | None:
    """Return the parts of a node at the holes of a pattern; None if the node does not match."""
    captured: Captured = {}
    return captured if _is_like(pattern, node, captured) else None


def _is_like(pattern: object, node: object, captured: Captured) -> bool:
    if _is_hole(pattern) and isinstance(node, ast.expr):
        assert isinstance(pattern, ast.Name)
        captured[pattern.id] = node
        return True
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.AST):
        return all(
            _is_like(value, getattr(node, name, None), captured)
            for name, value in ast.iter_fields(pattern)
            if name not in ("ctx", "type_comment")
        )
    if isinstance(pattern, list):
        assert isinstance(node, list)
        return len(pattern) == len(node) and all(map(lambda a, b: _is_like(a, b, captured), pattern, node))
    return pattern == node


def _definition(module: ast.Module, qualname: str) -> ast.AST:
    scope: ast.AST = module
    for name in qualname.split("."):
        there = {one.name: one for one in ast.iter_child_nodes(scope) if isinstance(one, _DEFINITIONS)}
        if name not in there:
            raise NoMatchError(f"{qualname}: there is no {name!r}, but {', '.join(there) or 'nothing'}")
        scope = there[name]
    return scope


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _said(qualname: str, pattern: ast.AST, function: ast.AST, count: int) -> str:
    alike = [ast.unparse(node) for node in ast.walk(function) if type(node) is type(pattern)]
    return "\n    ".join([f"{qualname}: {count} times `{ast.unparse(pattern)}`, among:", *alike])


# ---------------------------------------------------------------------------------------------------- new code ---


class _Exchange(ast.NodeTransformer):
    """Replaces a node by other nodes."""

    def __init__(self, node: ast.AST, new: list[ast.AST]) -> None:
        self._node, self._new = node, new

    def visit(self, node: ast.AST) -> ast.AST | list[ast.AST]:
        if node is self._node:
            return self._new if len(self._new) > 1 else self._new[0]
        return self.generic_visit(node)


class _Filled(ast.NodeTransformer):
    """Inserts captured nodes into new code."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._captured.get(node.id, node)
