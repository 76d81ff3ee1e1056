"""`infeng bench compare`: this engine and others, side by side on the same shapes, threads and lengths."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from infeng_bench import options
from infeng_bench.engine.command_line import FORMAT, make_room
from infeng_bench.engine.work import MOST, Work
from infeng_bench.reports.results import OURS
from infeng_bench.stats.contention import withheld
from tqdm import tqdm

from infeng_core.api import UsageError
from infeng_peers import comparison, exports, lineup

NAME = "compare"

PAIRS = 20
RANGE = re.compile(r"\b([0-9]+)\.\.([0-9]+)\b")
WIDTH = 19  # of the column of engines


def configure(parser: argparse.ArgumentParser) -> None:
    help = "such as decode:rows=1,context=1024, or rows=1..64: each number twice the last; repeats"
    parser.add_argument("--work", action="append", required=True, metavar="W", help=help)
    options.add_engines(parser, f"ratios are {OURS}/B", required=True)
    options.add_pairs(parser, PAIRS, "rounds kept", "pairs")
    options.add_seed(parser, "prompts")
    options.add_roofline(parser)
    options.add_run(parser, "a Hugging Face directory, or a GGUF for all")


def run(arguments: argparse.Namespace) -> int:
    return against(arguments, [one for text in arguments.work for one in several(text)], arguments.pairs)


def several(text: str) -> list[Work]:
    """Read a work whose numbers may be ranges ``LOW..HIGH``, doubled from step to step; errors as in ``Work.parse``."""
    found = RANGE.search(text)
    if found is None:
        return [Work.parse(text)]
    low, high = int(found[1]), int(found[2])
    if not 1 <= low <= high <= MOST:
        raise UsageError(f"work {text!r}", f"{found[0]} is no range", f"give two numbers from 1 to {MOST}")
    numbers = [low << doublings for doublings in range((high // low).bit_length())]
    return [work for n in numbers for work in several(f"{text[: found.start()]}{n}{text[found.end() :]}")]


def against(arguments: argparse.Namespace, works: Sequence[Work], pairs: int) -> int:
    """Measure ``works`` with the engines of ``--engines``; the JSON file is written after each work."""
    begin = time.monotonic()
    options.make_long_enough(arguments, works)
    make_room(arguments, max(work.rows for work in works))
    options.model_name(arguments)
    threads = options.threads(arguments)
    source = lineup.source(arguments)
    if not exports.is_gguf(source):
        arguments.format = arguments.format or FORMAT
    commands = lineup.commands(arguments, source, threads)
    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    bar = tqdm(total=len(works) * len(commands) * (pairs + 1), unit="sample", disable=None, file=sys.stderr)
    with lineup.running(commands, arguments.timeout) as engines, bar:
        introductions = {engine.name: engine.introduction for engine in engines}
        machine = options.roofline(arguments, threads)  # the engines sleep
        for number, work in enumerate(works):
            bar.set_description(str(work))
            seed = arguments.seed + number * (pairs + 1)
            measured = comparison.rounds(engines, work, pairs, seed, bar.update)
            found.append(comparison.compared(work, measured, introductions, machine))
            figures: dict[str, Any] = dict(found[0]) if len(works) == 1 else {"measurements": list(found)}
            facts = {"work": figures.pop("work", None), "format": arguments.format or source.name, "threads": threads}
            figures["seconds_in_all"] = time.monotonic() - begin
            result = lineup.record(NAME, arguments, introductions, figures, **facts)
            options.keep(result, arguments)
    return options.deliver(result, arguments, show(found, result["seconds_in_all"]))


def show(found: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
    """Return the printed lines."""
    lines = []
    for one in found:
        lines.append(f"{one['work']}, {one['pair_count']} pairs")
        lines += [f"  {name:{WIDTH}}{_engine_line(one, name)}" for name in one["engines"]]
        share = one["roofline"]
        if share["dram_fraction"] is not None:
            text = f"{share['dram_fraction']:.0%} of DRAM"
            text += f", {share['int8_fraction']:.0%} of int8 ({share['int8_isa']})" if share["int8_fraction"] else ""
            lines.append(f"  {'limit':{WIDTH}}{text}")
        if why := withheld(one):
            lines.append(f"  {'no ratio':{WIDTH}}{why}")
        if one["starved"]:
            lines.append(
                f"  {'starved':{WIDTH}}{one['starved_pairs']} pairs with an engine below half its median; they count"
            )
    lines.append(f"total time {seconds:.0f} s")
    return lines


def _engine_line(one: Mapping[str, Any], name: str) -> str:
    engine = one["engines"][name]
    rate = engine["tokens_per_s"]
    text = f"{rate['median']:.1f} tokens/s ({rate['min']:.1f} to {rate['max']:.1f})"
    if "bytes_per_token" in engine:
        text += f", {engine['bytes_per_token'] / 1e6:.0f} MB a token"
    if name in one["ratios"] and not withheld(one):
        low, sure = one["ratio_low"][name], one["ratio_low_confidence"][name]
        text += f"; {one['base']} is {one['ratios'][name]:.2f} x, at least {low:.2f} ({sure:.0%})"
    return text
