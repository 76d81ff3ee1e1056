"""Options that constrain a completion: the argument of the logit processor ``grammar``, which a plugin brings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from infeng_core.errors import UsageError


def add_structure_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--json-schema``, ``--regex``, ``--choice`` and ``--grammar``, which exclude each other."""
    group = parser.add_argument_group("structured output (wheel infeng-grammar)").add_mutually_exclusive_group()
    group.add_argument("--json-schema", metavar="FILE|JSON", help="answer with JSON that a schema describes")
    group.add_argument("--regex", metavar="TEXT", help="answer with a text that a regular expression matches")
    group.add_argument("--choice", action="append", metavar="TEXT", help="answer with one of these texts; repeats")
    group.add_argument("--grammar", metavar="FILE", help="answer by a grammar: FILE.lark, or FILE.gbnf as of llama.cpp")
    parser.add_argument(
        "--logit-processor",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a logit processor of a plugin, with its argument; repeats, and they act in this order",
    )


def processors_of(arguments: argparse.Namespace) -> tuple[tuple[str, Any], ...]:
    """Return the logit processors that the options stand for; raises UsageError for what cannot be read."""
    return (*structure_of(arguments), *named_processors(arguments).items())


def named_processors(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``--logit-processor`` by their names; raises UsageError."""
    found: dict[str, Any] = {}
    for text in arguments.logit_processor:
        name, equals, argument = text.partition("=")
        what = f"--logit-processor {name}"
        if not equals or not name:
            raise UsageError(what, "it has no argument", """give its name and JSON: choice='["yes", "no"]'""")
        if name in found:
            raise UsageError(what, "it is given twice", "give it once")
        try:
            found[name] = json.loads(argument)
        except (ValueError, RecursionError) as error:
            raise UsageError(what, f"its argument is no JSON: {error}", """give such as '["yes", "no"]'""") from None
    return found


def structure_of(arguments: argparse.Namespace) -> tuple[tuple[str, Any], ...]:
    """Return the processor that the options of structured output stand for; raises UsageError."""
    if arguments.json_schema is not None:
        return (("grammar", {"json_schema": _schema(arguments.json_schema)}),)
    if arguments.regex is not None:
        return (("grammar", {"regex": arguments.regex}),)
    if arguments.choice:
        return (("grammar", {"choice": arguments.choice}),)
    if arguments.grammar is not None:
        path = Path(arguments.grammar)
        return (("grammar", {"gbnf" if path.suffix == ".gbnf" else "lark": _read(path)}),)
    return ()


def _schema(given: str) -> Any:
    text = given if given.lstrip().startswith("{") else _read(Path(given))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "--json-schema", f"it is no JSON: {error}", "give a schema, or a file that holds one"
        ) from None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "give a file that can be read") from None
    except UnicodeDecodeError as error:
        raise UsageError(str(path), f"byte {error.start} is not UTF-8", "convert the file to UTF-8") from None
