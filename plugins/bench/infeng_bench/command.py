"""`infeng bench VERB`: each verb is a module, imported when its own arguments are parsed.

Other plugins bring further verbs through the hook ``infeng_bench_verbs``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
from typing import Any, Protocol

from infeng_bench.hookspecs import OF_WHEELS, BenchVerb, infeng_bench_verbs
from infeng_core.api import Plugins, UsageError, load_config
from infeng_core.api.servers import Parser

VERBS = {
    "gemm": "measure the linears of a model one by one",
    "attention": "measure attention over the cache, decoding and prefilling",
    "decode": "measure decoding: tokens per second of sequences that hold a context",
    "prefill": "measure prefilling: tokens of prompts per second",
    "lora-tax": "measure what adapters cost: the same rows with and without them, in turn",
    "experts": "measure the experts of a mixture's layers, beside those of kTransformers",
    "gemm-lora": "measure linears with adapters: fused, unfused and without",
    "pace": "measure decoding beside long prompts: the pace of tokens, and what a prompt loses",
    "prefix": "measure shared beginnings of prompts: first token computed, from memory, from disk",
    "adapters": "measure a folder of thousands of adapters: start, memory, first token with few of them in memory",
    "swap": "measure loading adapters: latency, and what the running batch feels of it",
    "throughput": "measure many requests in flight: throughput and latencies",
    "tokenizer": "measure the tokenizer: encoding, and decoding token by token",
    "drafts": "measure drafters in turn on texts with given answers: edits, an agent's calls, prose",
    "serve": "measure an engine, or a server, under traffic: latencies, goodput, fairness",
    "memory": "measure what memory models take, beside what was said before they were made",
    "roofline": "measure what this machine can do: DRAM bandwidth and int8 peak",
}  # verb -> help

MODULES = {"decode": "timed_works", "prefill": "timed_works"}  # of verbs/; others have the verb's name


class Verb(Protocol):
    """The functions of a verb's module."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure; return the exit status. Raises InfengError."""


def verbs() -> dict[str, BenchVerb]:
    """Return every verb by name: those of this wheel, then those of other plugins."""
    modules = {name: MODULES.get(name, name).replace("-", "_") for name in VERBS}
    found = {name: BenchVerb(help, f"infeng_bench.verbs.{modules[name]}") for name, help in VERBS.items()}
    for brought in Plugins.discover(load_config()).answers(infeng_bench_verbs).values():
        found = {**found, **{name: one for name, one in brought.items() if name not in found}}
    return found


def verb(name: str) -> Verb:
    """Import a verb's module. name: a key of ``verbs``, or a verb whose wheel is missing."""
    known = verbs()
    if name not in known:
        return _Missing(name, OF_WHEELS[name])
    module: Any = importlib.import_module(known[name].module)
    return module  # type: ignore[no-any-return]


class _Missing:
    """A verb whose wheel is not installed."""

    def __init__(self, name: str, wheel: str) -> None:
        """Name the wheel."""
        self._name, self._wheel = name, wheel

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Take any arguments."""
        parser.prefix_chars = "\0"
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)

    def run(self, arguments: argparse.Namespace) -> int:
        """Raise UsageError."""
        raise UsageError(f"infeng bench {self._name}", "no plugin brings it", f"install the wheel {self._wheel}")


class _LazyParser(Parser):
    """A parser that adds its arguments when it is used, so that `infeng bench decode` imports no other verb."""

    verb_name: str | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with the verb's module imported first."""
        name, self.verb_name = self.verb_name, None
        if name is not None:
            verb(name).configure(self)
            self.set_defaults(run=functools.partial(_run, name))  # a partial pickles: simulate sends it to processes
        return super().parse_known_args(args, namespace)


def _run(name: str, arguments: argparse.Namespace) -> int:
    """Run a verb after resolving its model and checking that its output files can be written."""
    from infeng_bench import options
    from infeng_bench.reports import pages, results
    from infeng_bench.stats import gates

    options.settle_model(arguments)
    results.require_places(arguments)
    gates.parse(getattr(arguments, "gate", ()))  # raises before the measurement
    if getattr(arguments, "report", None):
        pages.pages()  # raises before the measurement
    return verb(name).run(arguments)


class Bench:
    """The command."""

    name = "bench"
    help = "measure kernels, the engine and this machine"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verbs."""
        parsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_LazyParser)
        known = {name: one.help for name, one in verbs().items()}
        missing = {name: f"needs the wheel {wheel}" for name, wheel in OF_WHEELS.items() if name not in known}
        for name, help in {**known, **missing}.items():
            parsers.add_parser(name, help=help, description=help).verb_name = name

    def run(self, arguments: argparse.Namespace) -> int:
        """Never called: argparse requires a verb, and the verb's parser sets its own ``run``."""
        raise AssertionError("argparse lets no call without a verb through")
