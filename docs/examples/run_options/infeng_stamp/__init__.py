"""Options of ``infeng run``, ``chat`` and ``ask``: ``--only-tokens IDS``, and ``--elsewhere`` of ``run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infeng_core.api import RunOptions, UsageError, hookimpl, say


class Stamp(RunOptions):
    """The options."""

    def __init__(self, mark: str) -> None:
        """Print ``mark`` before a prompt."""
        self._mark = mark

    def add(self, parser: argparse.ArgumentParser, command: str) -> None:
        """Add the options to the parser of a command."""
        group = parser.add_argument_group("stamp")
        group.add_argument("--only-tokens", metavar="IDS", help="answer with these token ids alone: 5,6,7")
        if command == "run":
            group.add_argument("--elsewhere", action="store_true", help="print the prompts, and run no model")

    def processors(self, arguments: argparse.Namespace) -> Sequence[tuple[str, object]]:
        """Return what stands for ``--only-tokens`` in an engine: one of its own logit processors."""
        return (("allowed_token_ids", _ids(arguments.only_tokens)),) if arguments.only_tokens else ()

    def fields(self, arguments: argparse.Namespace) -> Mapping[str, object]:
        """Return what stands for it in a request to a server."""
        return {"allowed_token_ids": _ids(arguments.only_tokens)} if arguments.only_tokens else {}

    def run(self, arguments: argparse.Namespace, prompts: Callable[[], Sequence[str]]) -> int | None:
        """Answer in place of an engine where ``--elsewhere`` asks for it."""
        if not arguments.elsewhere:
            return None
        say(*(f"{self._mark}{prompt}" for prompt in prompts()))
        return 0


def _ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--only-tokens {text}", "these are no token ids", "give numbers: 5,6,7") from None


@hookimpl
def infeng_run_options(settings: Mapping[str, Any]) -> dict[str, RunOptions]:
    """Return the options."""
    return {"stamp": Stamp(settings["mark"])}
