"""Command-line options for structured output, converted to the argument of the logit processor ``grammar``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_core.api import RunOptions, UsageError

FIELDS = {"json_schema": "json", "regex": "regex", "choice": "choice", "lark": "grammar"}
"""By kind, its field of ``structured_outputs`` in a request to a server."""


class GrammarOptions(RunOptions):
    """``--json-schema``, ``--regex``, ``--choice`` and ``--grammar``, which exclude each other."""

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options."""
        group = parser.add_argument_group("structured output").add_mutually_exclusive_group()
        group.add_argument("--json-schema", metavar="FILE|JSON", help="answer with JSON that a schema describes")
        group.add_argument("--regex", metavar="TEXT", help="answer with a text that a regular expression matches")
        group.add_argument("--choice", action="append", metavar="TEXT", help="answer with one of these texts; repeats")
        text = "answer by a grammar: FILE.lark, or FILE.gbnf as of llama.cpp"
        group.add_argument("--grammar", metavar="FILE", help=text)

    def processors(self, arguments: argparse.Namespace) -> Sequence[tuple[str, object]]:
        """Return the processor, if one of the options is given; raises UsageError."""
        wanted = argument(arguments)
        return (("grammar", wanted),) if wanted else ()

    def fields(self, arguments: argparse.Namespace) -> Mapping[str, object]:
        """Return the fields of a request to a server; raises UsageError."""
        wanted = argument(arguments)
        if "gbnf" in wanted:
            return {"grammar": wanted["gbnf"]}
        return {"structured_outputs": {FIELDS[kind]: value for kind, value in wanted.items()}} if wanted else {}


def argument(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the processor's argument, empty without an option; raises UsageError for an unreadable file or schema."""
    if arguments.json_schema is not None:
        return {"json_schema": _schema(arguments.json_schema)}
    if arguments.regex is not None:
        return {"regex": arguments.regex}
    if arguments.choice:
        return {"choice": arguments.choice}
    if arguments.grammar is not None:
        path = Path(arguments.grammar)
        return {"gbnf" if path.suffix == ".gbnf" else "lark": _read(path)}
    return {}


def _schema(given: str) -> Any:
    text = given if given.lstrip().startswith("{") else _read(Path(given))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = "give a schema, or a file that holds one"
        raise UsageError("--json-schema", f"it is not JSON: {error}", remedy) from None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "give a file that can be read") from None
    except UnicodeDecodeError as error:
        raise UsageError(str(path), f"byte {error.start} is not UTF-8", "convert the file to UTF-8") from None
