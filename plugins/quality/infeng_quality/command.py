"""`infeng quality`: a comparison of two models, or one of the verbs; each is a module, imported at its use."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, NoReturn

from infeng_core.api import printable

COMPARE = ("infeng_quality.compare", "REF CANDIDATE", "compare a model with its reference, token by token")

VERBS: dict[str, tuple[str, str, str]] = {
    "tasks": ("infeng_quality.tasks.verb", "MODEL", "answer GSM8K, HumanEval or MBPP, and compare two models on it"),
    "nightly": (
        "infeng_quality.nightly",
        "REF CANDIDATE ...",
        "measure quality and throughput of several candidates, and draw the history",
    ),
}
"""Verb -> (module, positional arguments, help). The module has ``configure(parser)`` and ``run(arguments)``."""


class Quality:
    """The command."""

    name = "quality"
    help = "measure what a weight or cache format costs: perplexity, KL, tasks"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Collect all words: a first word that is not a verb is a reference model."""
        parser.prefix_chars = "\0"  # leaves all options to the verbs' own parsers
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run a verb, or compare; returns the exit status."""
        words: list[str] = arguments.words
        if not words or words[0] in ("-h", "--help"):
            print(usage(), file=sys.stdout if words else sys.stderr)
            return 0 if words else 2
        verb = words[0] if words[0] in VERBS else ""
        name, _, help = VERBS[verb] if verb else COMPARE
        module: Any = importlib.import_module(name)
        parser = _Parser(prog=f"infeng quality {verb}".strip(), description=help)
        module.configure(parser)
        status: int = module.run(parser.parse_intermixed_args(words[1:] if verb else words))
        return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, with control characters escaped; exit with status 2."""
        super().error(printable(message))


def usage() -> str:
    """Return the list of verbs with their arguments."""
    lines = [("", *COMPARE[1:]), *((name, *verb[1:]) for name, verb in VERBS.items())]
    shown = [(" ".join(part for part in ("infeng quality", name, words) if part), help) for name, words, help in lines]
    width = max(len(call) for call, _ in shown)
    calls = "\n".join(f"  {call:{width}}  {help}" for call, help in shown)
    verb = next(iter(VERBS))
    return f"{calls}\n\nAdd -h to one of them for its options. A model with the name of a verb is ./{verb}."
