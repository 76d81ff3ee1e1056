"""The parser of every command: errors on one line, with what was probably meant, and a few habits of people."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from infeng_core.errors import closest, printable

_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """Says what is wrong on one line; an optional last positional may stand behind options.

    argparse itself gives an optional positional its value only where it follows the others directly. A command that
    has one (``set_defaults(last_positional=NAME)``) takes it wherever it stands.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and take what is left over as the last positional where it is a value."""
        namespace, rest = super().parse_known_args(args, namespace)
        namespace.parsers = [*getattr(namespace, "parsers", ()), self]  # of commands and verbs, the innermost first
        if (model := getattr(namespace, "model_option", None)) is not None:
            rest = [*filter(None, [namespace.model]), *rest]  # what stands where MODEL would is the next positional
            namespace.model, namespace.model_option = model, None
        name = getattr(namespace, "last_positional", None)
        is_value = len(rest) == 1 and (rest[0] == "-" or not rest[0].startswith("-"))
        if name is not None and is_value and getattr(namespace, name) is None:
            setattr(namespace, name, rest[0])
            rest = []
        return namespace, rest

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an argument that is unknown is an error that suggests one that is known."""
        namespace, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{_suggestion(rest, options(namespace.parsers))}")
        del namespace.parsers
        return namespace

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; argparse itself says nothing where a text that was asked for cannot be written."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message; end with status 2."""
        super().error(printable(message))


class ModelOption(argparse.Action):
    """``-m MODEL`` in place of the positional MODEL."""

    positional: argparse.Action

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Take the model; the positional is not asked for."""
        namespace.model_option = values
        self.positional.required = False


def add_model(parser: argparse.ArgumentParser, help: str = "model directory or hub name") -> argparse.Action:
    """Add the positional MODEL, and ``-m``, which llama.cpp's users write; return the positional."""
    positional = parser.add_argument("model", metavar="MODEL", help=help)
    option = parser.add_argument("-m", dest="model_option", action=ModelOption, help=argparse.SUPPRESS)
    assert isinstance(option, ModelOption)
    option.positional = positional
    return positional


def options(parsers: Iterable[argparse.ArgumentParser]) -> set[str]:
    """Return the words of all options that the help of some parsers shows."""
    return {word for parser in parsers for word in _OPTION.findall(parser.format_help())}


def _suggestion(rest: Sequence[str], known: Iterable[str]) -> str:
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("--")), "")
    meant = closest(unknown, known) if unknown else None
    return f": did you mean `{meant}`?" if meant else ""
