"""``--logit-processor NAME=JSON``: a logit processor of any plugin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infeng_core.api import RunOptions, UsageError


class ProcessorOptions(RunOptions):
    """``--logit-processor NAME=JSON``."""

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the option."""
        text = "a logit processor of a plugin, with its argument; repeats, and they act in this order"
        parser.add_argument("--logit-processor", action="append", default=[], metavar="NAME=JSON", help=text)

    def processors(self, arguments: argparse.Namespace) -> Sequence[tuple[str, object]]:
        """Return the named processors in order; raises UsageError."""
        return tuple(named(arguments.logit_processor).items())

    def fields(self, arguments: argparse.Namespace) -> Mapping[str, object]:
        """Return the same processors as the field of a request; raises UsageError."""
        found = named(arguments.logit_processor)
        return {"logit_processors": found} if found else {}


def named(texts: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of ``--logit-processor`` by their names; raises UsageError."""
    found: dict[str, Any] = {}
    for text in texts:
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
