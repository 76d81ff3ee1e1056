"""`infeng plugins bench`: how fast each part of a plugin is beside what does the same without it."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from infeng_core.api import EngineConfig, Plugins, UsageError, load_config, say
from infeng_core.api.kernels import detect
from infeng_kit.plan import Plan, model_of

ROWS, PAIRS = "1,16,64", 15


class Bench:
    """The verb."""

    name = "bench"
    help = "measure each part of an installed plugin beside what the engine would use without it"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("plugin", metavar="NAME", help="an installed plugin")
        parser.add_argument("--model", metavar="M", help="kernels at the sizes of this model, not a 1.1B Llama's")
        parser.add_argument(
            "--rows", metavar="N,N", type=_counts, default=_counts(ROWS), help=f"rows of a step ({ROWS})"
        )
        help = "formats of weights and cache (default: the plugin's own, else the engine's, else the first accepted)"
        parser.add_argument("--format", metavar="F,F", type=_words, default=(), help=help)
        parser.add_argument("--kernel", metavar="PART", default="", help="only kernels with this in their names")
        parser.add_argument("--pairs", metavar="N", type=_count, default=PAIRS, help=f"most readings of each ({PAIRS})")
        parser.add_argument("-t", "--threads", metavar="N", type=_count, help="worker threads (default: usable cores)")
        parser.add_argument("--json", metavar="OUT", help="write the result as JSON; - is standard output")

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure, write and print; raises UsageError for a plugin without a part that can be measured."""
        if find_spec("infeng_bench") is None:
            raise UsageError("infeng plugins bench", "it needs the wheel infeng-bench", "pip install infeng-bench")
        from infeng_bench.api import record, require_places, write

        require_places(arguments)
        plugin = Plugins.discover(load_config()).plugin(arguments.plugin)  # raises the error for an unknown name
        threads = detect().place(replace(EngineConfig().threads, count=arguments.threads or "auto")).workers
        with tempfile.TemporaryDirectory(prefix="infeng-bench-") as folder:
            plan = Plan(plugin.name, folder, model=model_of(arguments.model))
            found, left_out = _measured(plan, threads, arguments)
        if not found:
            why = "; ".join(left_out) or "it has no kernel, weight format, tokenizer or policy"
            raise UsageError(f"plugin {plugin.name}", f"nothing of it can be measured: {why}", "name another plugin")
        facts: dict[str, Any] = {
            "plugin": plugin.name,
            "plugin_version": plugin.manifest.version if plugin.manifest else None,
        }
        facts |= {"model": arguments.model, "threads": threads, "rounds": arguments.pairs}
        result = record("plugin", {"measurements": found, "left_out": left_out}, **facts)
        is_taken = arguments.json == "-"
        if arguments.json:
            write(arguments.json, result)
        if not is_taken:
            say(*_shown(found), *([""] if left_out else []), *left_out)
        return 0


def _measured(plan: Plan, threads: int, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the figures of all parts, and why others have none."""
    from infeng_kit.benches import parts
    from infeng_kit.benches.kernels import Kernels
    from infeng_kit.benches.pairs import measured

    sizes = (threads, arguments.rows, arguments.format, arguments.kernel)
    with contextlib.closing(Kernels(plan, *sizes)) as kernels:
        found = [measured(pair, arguments.pairs) for pair in kernels.pairs()]
        if not arguments.kernel:
            found += [measured(pair, arguments.pairs) for pair in parts.pairs(plan)]
        return found, kernels.left_out


def _shown(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table for people; a ratio above 1 means that the plugin is faster."""
    from infeng_bench.api import Column, columns, table

    shown = (
        Column("part", "part"),
        Column("work", "work"),
        Column("unit", "unit"),
        Column("own", "figure", ".3g"),
        Column("beside", "figure_beside", ".3g"),
        Column("of", "beside"),
        Column("times as fast", "ratio", ".2f"),
        Column("at least", "ratio_low", ".2f"),
        Column("at most", "ratio_high", ".2f"),
    )
    yield from columns(table(shown, found))


def _count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 65536")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)
