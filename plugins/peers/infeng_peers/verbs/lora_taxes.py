"""`infeng bench lora-tax --engines`: what adapters cost this engine and others, in one interleaved run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_bench import beside, options
from infeng_bench.engine.command_line import FORMAT, make_room
from infeng_bench.engine.work import Work
from infeng_bench.models import adapters
from infeng_bench.options import Column
from infeng_bench.reports.results import OURS
from infeng_bench.stats.contention import withheld
from tqdm import tqdm

from infeng_core.api import UsageError
from infeng_peers import exports, known, lineup, tax_comparison
from infeng_peers.process import EngineProcess
from infeng_peers.tax_comparison import Sizes

KIND = "lora-taxes"  # of results

COLUMNS = (
    Column("engine", "engine"),
    Column("tokens/s without", "tokens_per_s.without.median", ".1f"),
    Column("with", "tokens_per_s.with.median", ".1f"),
    Column("tax %", "lora_tax", "+.1f", 100),
    Column("at least", "lora_tax_low", "+.1f", 100),
    Column("at most", "lora_tax_high", "+.1f", 100),
    Column("passes", "passes", "d"),
    Column("MB of weights", "weight_bytes", ".1f", 1e-6),
    Column("of adapters", "adapter_bytes", ".1f", 1e-6),
    Column("bytes' share %", "bytes_share", ".1f", 100),
    Column("and 2 points", "tax_goal", ".1f", 100),
)


def run(arguments: argparse.Namespace, work: Work) -> int:
    """Measure ``work`` with the engines of ``--engines``; the JSON file has the result."""
    begin = time.monotonic()
    names = beside.engines(arguments.engines)
    check(arguments, names)
    options.make_long_enough(arguments, [work])
    make_room(arguments, arguments.rows)
    if arguments.storage:
        arguments.assignments.append(f"adapters.dtype={arguments.storage}")
    options.model_name(arguments)
    threads = options.threads(arguments)
    source = lineup.source(arguments)
    arguments.format = arguments.format or FORMAT
    held = dict(random_adapters(arguments, source))
    commands = {name: lineup.command(name, arguments, source, threads) for name in names}
    total = 2 * len(names) * (arguments.pairs + 1)
    bar = tqdm(total=total, desc="lora-tax", unit="sample", disable=None, file=sys.stderr)
    with lineup.running(commands, arguments.timeout) as engines, bar:
        for engine in engines:
            give(engine, held, source)
        sizes = {engine.name: Sizes.of(engine, work.rows, list(held)) for engine in engines}
        found = tax_comparison.rounds(engines, work, list(held), arguments.pairs, arguments.seed, bar.update)
        told = {engine.name: engine.introduction for engine in engines}
    figures = tax_comparison.compared(found, sizes)
    figures |= {name: getattr(arguments, name) for name in ("phase", "rows", "adapters", "rank", "targets")}
    if OURS in told:
        figures["storage"] = told[OURS]["details"]["adapter_dtype"]
    figures |= {"context": work.context, "seconds_in_all": time.monotonic() - begin}
    facts = {"work": str(work), "format": arguments.format, "threads": threads}
    result = lineup.record(KIND, arguments, told, figures, **facts)
    return options.deliver(result, arguments, lines(result))


def check(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise UsageError for options that only this engine alone has, a GGUF, or a peer without adapters."""
    for option, given in (("--dora", arguments.dora), ("--base-only", arguments.base_only)):
        if given:
            raise UsageError(option, "is measured on this engine alone", "leave it or --engines out")
    if arguments.model and exports.is_gguf(Path(arguments.model)):
        raise UsageError("--model", "a GGUF is not read by every engine", "give a Hugging Face directory")
    for name in names:
        if name != OURS and not known.peer(name).TAKES_ADAPTERS:
            raise UsageError(name, "its rows cannot have different adapters here", "leave this peer out")


def random_adapters(arguments: argparse.Namespace, source: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and PEFT directories of random adapters, made on the first call."""
    model = arguments.synthetic or source
    for index in range(arguments.adapters):
        seed = arguments.seed * arguments.adapters + index
        yield f"a{index}", adapters.peft_directory(model, arguments.rank, arguments.targets, seed)


def give(engine: EngineProcess, held: Mapping[str, Path], source: Path) -> None:
    """Load the adapters into an engine, exported as it reads them."""
    paths = dict(held)
    if engine.name != OURS:
        peer = known.peer(engine.name)
        paths = {name: exports.peer_adapter(peer, path, source) for name, path in paths.items()}
    engine.adapters([{"name": name, "path": str(path), "scale": 1.0} for name, path in paths.items()])


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the printed table; without the taxes if the machine was too busy."""
    figures = [{"engine": name, **one} for name, one in result["engines"].items()]
    hidden = ("lora_tax", "lora_tax_low", "lora_tax_high") if withheld(result) else ()
    what = f"{result['adapters']} LoRA adapters of rank {result['rank']} on {result['targets']}"
    shown = [f"{result['work']}; {what}, {result['pair_count']} pairs"]
    shown += options.columns(options.table(COLUMNS, figures, hidden))
    taken = [name for name, one in result["engines"].items() if one["passes"] > 1]
    if taken:
        shown.append(f"one pass over the weights for each adapter: {', '.join(taken)}")
    return shown
