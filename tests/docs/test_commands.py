"""Every `infeng ...` of the documentation is one that the command line takes: its command, options and arguments."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest

from infeng_core.cli import main
from infeng_core.cli.parser import Parser

ROOT = Path(__file__).parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")}
               - {ROOT / "CHANGELOG.md"})  # fmt: skip  # which speaks of other times
READERS = {"shout"}
"""Commands that a page has its reader write."""

FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(infeng [^`\n]+)`")
STARTED = re.compile(r"^\s*(?:\$ )?(?:\. \S+ && )?(?:\w+=\S+ )*(?:\S*/)?(infeng .*)$")
PLACEHOLDER = re.compile(r"\[?[A-Z][A-Z0-9_]*(\.\w+)?\]?")
"""Stands for what a reader gives: MODEL, FILE.gguf, [FILE]."""
ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", ")"}
FILL = "X"
"""Stands for what a mention leaves out."""
LOAD = "poisson:rate=1"
"""Stands for what a mention leaves out of --load, which is looked at when it is parsed."""
MOST_FILLED = 8


class RefusedError(Exception):
    """What the parser says of a command that it does not take."""


def mentions() -> Iterator[tuple[str, str, bool]]:
    """Yield the page, the command and whether it is whole, of each command there is."""
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        for block in FENCED.findall(text):
            for line in block.replace("\\\n", " ").splitlines():
                if found := STARTED.match(line):
                    yield name, found[1].strip(), True
        for command in INLINE.findall(FENCED.sub("", text)):
            yield name, command, False


MENTIONS = list(dict.fromkeys(mentions()))


@cache
def parser_of(name: str) -> Any:
    """Return the parser as it is where ``name`` is the command."""
    found: list[Parser] = []

    def kept(self: Parser, *_: Any) -> NoReturn:
        found.append(self)
        raise KeyboardInterrupt  # which the program takes for the end

    with mock.patch.object(Parser, "parse_args", kept):
        assert main([name]) == 130
    return found[0]


def parse(words: list[str]) -> None:
    """Parse; raises RefusedError."""

    def refuse(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise RefusedError(message)

    parser = parser_of(words[0])
    with contextlib.ExitStack() as patched:
        for kind in (Parser, argparse.ArgumentParser):  # a command may make parsers of its own
            patched.enter_context(mock.patch.object(kind, "error", refuse))
            patched.enter_context(mock.patch.object(kind, "exit"))
        parser.parse_args(words)


def words_of(command: str) -> list[str]:
    """Return the words of a command up to a pipe, a redirection or a comment."""
    words = shlex.split(command, comments=True)[1:]
    end = next((place for place, word in enumerate(words) if word in ENDS or word.startswith(("2>", ">"))), len(words))
    bare = [word.removesuffix("...").strip("[]") for word in words[:end] if word not in ("...", "[...]")]
    return [word.split("|")[0] if re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", word) else word for word in bare]


def check(command: str, *, is_whole: bool) -> None:
    """Raise RefusedError for a command that is not taken. is_whole: nothing that it needs is left out."""
    words = words_of(command)
    is_whole = is_whole and "..." not in command
    words = [
        LOAD if pair[0] == "--load" and PLACEHOLDER.fullmatch(pair[1]) else pair[1] for pair in pairwise(["", *words])
    ]
    for _ in range(MOST_FILLED):
        try:
            return parse(words)
        except RefusedError as error:
            filled = instead(words, str(error), is_whole)
            if filled == words:
                raise
            words = filled
    raise AssertionError(f"{command} needs more than {MOST_FILLED} words that it does not give")


def instead(words: list[str], said: str, is_whole: bool) -> list[str]:
    """Return the words with what a mention leaves out, or a value for a placeholder that the parser cannot take."""
    if not is_whole and (missing := re.match(r"the following arguments are required: (.*)", said)):
        names = missing[1].split(", ")
        return [*words, *(word for name in names for word in ([name] if name.startswith("-") else []) + [FILL])]
    if not is_whole and (either := re.match(r"one of the arguments (--\S+) .*is required", said)):
        return [*words, either[1], FILL]
    if not is_whole and (option := re.match(r"argument ([^:]*): expected (one|at least one|\d+) argument", said)):
        names = option[1].split("/")
        place = next(place for place, word in enumerate(words) if word in names)
        return [*words[: place + 1], LOAD if words[place] == "--load" else FILL, *words[place + 1 :]]
    if wrong := re.search(r"invalid (?:choice|\w+ value): '([^']*)'", said):
        choices = re.search(r"\(choose from '?([\w-]+)", said)
        value = choices[1] if choices else "1"
        return [value if word == wrong[1] and PLACEHOLDER.fullmatch(word) else word for word in words]
    return words


@pytest.mark.parametrize(
    ("page", "command", "is_whole"), MENTIONS, ids=[f"{page}: {text}" for page, text, _ in MENTIONS]
)
def test_the_parser_accepts_every_documented_command(page: str, command: str, is_whole: bool) -> None:
    name = command.split()[1]
    if PLACEHOLDER.fullmatch(name) or name in READERS or name == "--help":
        return  # it speaks of any command, of one that is not there, or of the list of all
    check(command, is_whole=is_whole)


@pytest.mark.parametrize(
    ("command", "is_whole"),
    [("infeng bench roofline MODEL -t ...", False), ("infeng run --nonsense", False), ("infeng nonsense", False),
     ("infeng run MODEL -p x --max-tokens some", True), ("infeng convert A", True), ("infeng run -p", True),
     ("infeng bench nonsense", False)],
)  # fmt: skip
def test_a_documented_command_with_an_unknown_option_is_detected(command: str, is_whole: bool) -> None:
    with pytest.raises(RefusedError):
        check(command, is_whole=is_whole)


def test_there_are_commands_on_many_pages() -> None:
    assert len(MENTIONS) > 150
    assert len({page for page, _, _ in MENTIONS}) > 15
