"""The parser of every command: one-line errors with suggestions, and relaxed positions of arguments."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from infeng_core.errors import closest, printable

_NUMBER = re.compile(r" \((-?\d[\w.]*)\)$")  # at a help text's end: the default, which many options mention
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


class Help(argparse.HelpFormatter):
    """Help texts with the default of every option that has one; ``"tokens (96)"`` includes it already."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if "default" in text:
            return text
        if found := _NUMBER.search(text):
            return f"{text[: found.start()]} (default: {found[1]})"
        if default in (None, argparse.SUPPRESS, "") or default == [] or isinstance(default, bool):
            return text
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        return f"{text} (default: {shown.replace('%', '%%')})"


class Parser(argparse.ArgumentParser):
    """Reports errors on one line and shows defaults; optional last positionals may stand after options.

    argparse fills optional positionals only directly after the others. A command that has some
    (``set_defaults(last_positional=NAME)``) accepts them anywhere.
    """

    model: argparse.Action | None = None
    """The positional MODEL, if ``add_model`` has added one: an option may make it optional."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of ``ArgumentParser``."""
        super().__init__(*args, **{"formatter_class": Help, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and use leftover words as the last positionals if they are values."""
        namespace, rest = super().parse_known_args(args, namespace)
        namespace.parsers = [*getattr(namespace, "parsers", ()), self]  # innermost command or verb first
        if (model := getattr(namespace, "model_option", None)) is not None:
            first = [*filter(None, [namespace.model])]  # a word in the place of MODEL belongs to the next positional
            namespace.model, namespace.model_option = model, None
        else:
            first = []
        return namespace, _last_positional(namespace, first, rest)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown argument is an error with a suggestion."""
        namespace, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{_suggestion(rest, options(namespace.parsers))}")
        del namespace.parsers
        return namespace

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message; argparse itself ignores a failure to write requested text."""
        if file is not None and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message; end with status 2."""
        super().error(printable(message))


def _last_positional(namespace: argparse.Namespace, first: list[str], rest: list[str]) -> list[str]:
    """Assign the words before and after options to the last positional, a list or one value; return the rest.

    first: words that are values. rest: words that nothing has used.
    """
    name = getattr(namespace, "last_positional", None)
    if name is None or not (first or rest):
        return [*first, *rest]
    held = getattr(namespace, name)
    are_values = all(word == "-" or not word.startswith("-") for word in rest)
    if isinstance(held, list):
        setattr(namespace, name, [*first, *held, *(rest if are_values else [])])
        return [] if are_values else rest
    if held is None and are_values and len(words := [*first, *rest]) == 1:
        setattr(namespace, name, words[0])
        return []
    return [*first, *rest]


class ModelOption(argparse.Action):
    """``-m MODEL`` in place of the positional MODEL."""

    positional: argparse.Action

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        """Store the model; the positional becomes optional."""
        namespace.model_option = values
        self.positional.required = False


def add_model(parser: argparse.ArgumentParser, help: str = "model directory or hub name") -> argparse.Action:
    """Add the positional MODEL, and llama.cpp's spelling ``-m``; return the positional."""
    positional = parser.add_argument("model", metavar="MODEL", help=help)
    option = parser.add_argument("-m", dest="model_option", action=ModelOption, help=argparse.SUPPRESS)
    assert isinstance(option, ModelOption)
    option.positional = positional
    if isinstance(parser, Parser):
        parser.model = positional
    return positional


def options(parsers: Iterable[argparse.ArgumentParser]) -> set[str]:
    """Return all option strings in the help of the given parsers."""
    return {word for parser in parsers for word in _OPTION.findall(parser.format_help())}


def _suggestion(rest: Sequence[str], known: Iterable[str]) -> str:
    unknown = next((word.partition("=")[0] for word in rest if word.startswith("--")), "")
    meant = closest(unknown, known) if unknown else None
    return f": did you mean `{meant}`?" if meant else ""
