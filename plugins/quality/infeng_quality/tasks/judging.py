"""A program and its tests in two processes, connected by a line, so that the program cannot forge a verdict.

The tests run in a process without the program. There, names that only the program defines are proxies: a call goes over
the line, and the tests receive plain data. This file imports only the standard library, like ``sandboxed.py``.
"""

import ast
import builtins
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import wire  # type: ignore[import-not-found]

ERRORS = {kind.__name__: kind for kind in (
    ArithmeticError, AttributeError, IndexError, KeyError, LookupError, NameError, NotImplementedError, OverflowError,
    RecursionError, StopIteration, TypeError, ValueError, ZeroDivisionError)}  # fmt: skip
"""Exceptions that tests may expect of a program, without AssertionError."""


def serve(line: wire.Line, limit: Callable[[dict[str, int]], None]) -> None:
    """Receive and run the program, then answer requests for its names until the line ends."""
    job = line.receive()
    limit(job["limits"])
    sys.argv = ["program"]
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(job["program"], "program", "exec"), names)
    line.send("ready")
    held: list[Any] = []

    def handle(value: Any) -> int:
        held.append(value)
        return len(held) - 1

    while True:
        try:
            asked = line.receive()
        except wire.BrokenLineError:
            return
        try:
            if "name" in asked:
                result = names[asked["name"]]
            else:
                args, kwargs = wire.unpacked(asked["args"], held.__getitem__)
                result = _done(asked["act"], held[asked["handle"]], args, kwargs)
            line.send({"value": wire.packed(result, handle)})
        except Exception as error:
            line.send({"error": type(error).__name__})


def _done(act: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply an operation of the tests to an object of the program."""
    match act:
        case "call":
            return target(*args, **kwargs)
        case "get":
            return getattr(target, *args)
        case "set":
            return setattr(target, *args)
        case "list":
            return list(target)
        case "item":
            return target[args[0]]
        case _:
            return len(target)


class Remote:
    """The proxy of an object of the program."""

    def __init__(self, line: wire.Line, handle: int) -> None:
        """Keep the object's handle."""
        self.__dict__.update(_line=line, _handle=handle)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; raises the exception of the same name as the program's, or RuntimeError."""
        return _asked(self, "call", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute."""
        return _asked(self, "get", (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        _asked(self, "set", (name, value))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over a list of all items."""
        return iter(_asked(self, "list"))

    def __getitem__(self, key: Any) -> Any:
        """Return an item."""
        return _asked(self, "item", (key,))

    def __len__(self) -> int:
        """Return the number of items."""
        found = _asked(self, "length")
        return found if type(found) is int else -1

    def __bool__(self) -> bool:
        """Raise TypeError: only plain data has a truth value."""
        raise TypeError("no plain data")


def _asked(remote: Remote, act: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    line = remote.__dict__["_line"]
    packed = wire.packed((args, kwargs or {}), _number)
    line.send({"handle": remote.__dict__["_handle"], "act": act, "args": packed})
    return _answer(line)


def _number(value: Any) -> int:
    if type(value) is not Remote:
        raise TypeError("no plain data")
    return int(value.__dict__["_handle"])


def _answer(line: wire.Line) -> Any:
    answer = line.receive()
    if not isinstance(answer, dict):
        raise wire.BrokenLineError("no answer")
    if "value" in answer:
        try:
            return wire.unpacked(answer["value"], lambda handle: Remote(line, handle))
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
            raise wire.BrokenLineError(str(error)) from None
    raise ERRORS.get(answer.get("error", ""), RuntimeError)("in the program")


def judge(line: wire.Line, job: dict[str, Any]) -> bool:
    """Return whether the program and its tests run to their end.

    ``setup`` has further definitions for the tests; ``entries`` are names that refer to the program although ``setup``
    or Python defines them.
    """
    try:
        line.send({"program": job["program"], "limits": job["limits"]})
        if line.receive() != "ready":
            return False
        names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        exec(compile(job["setup"], "setup", "exec"), names)
        tree = ast.parse(job["tests"])
        for name in _unknown(tree, names) | set(job["entries"]):
            names[name] = importlib.import_module(name) if name in sys.stdlib_module_names else _named(line, name)
        exec(compile(tree, "tests", "exec"), names)
    except BaseException:
        return False
    return True


def _named(line: wire.Line, name: str) -> Any:
    """Return the program's object ``name``: plain data or a proxy."""
    line.send({"name": name})
    return _answer(line)


def _unknown(tree: ast.AST, known: dict[str, Any]) -> set[str]:
    """Return the names that tests use and that neither they nor ``known`` nor Python defines."""
    used: set[str] = set()
    own = set(known) | set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).partition(".")[0])
    return used - own
