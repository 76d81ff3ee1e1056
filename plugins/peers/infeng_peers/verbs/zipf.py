"""`infeng bench zipf`: requests with adapters of Zipf popularity, on one engine or several in turn."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_bench import beside, options
from infeng_bench.engine.command_line import FORMAT, make_room
from infeng_bench.load.arrivals import trace
from infeng_bench.models import adapters
from infeng_bench.reports.results import OURS
from infeng_inspect.api import shape_and_formats
from tqdm import tqdm

from infeng_core.api import EngineConfig, Plugins, UsageError
from infeng_core.api.formats import ModelConfig, format_lookup
from infeng_peers import adapter_comparison, exports, known, lineup, prompt_texts
from infeng_peers.process import EngineProcess
from infeng_peers.verbs import zipf_options
from infeng_peers.workload import Workload

NAME = "zipf"

configure = zipf_options.configure


@dataclass(frozen=True)
class Cell:
    """The adapters of one measurement."""

    paths: Mapping[str, Path]  # PEFT directories or GGUF files by name, the most popular first
    facts: Mapping[str, Any]  # for the result


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; the JSON file is written after each part of a sweep."""
    begin = time.monotonic()
    options.model_name(arguments)
    zipf_options.check(arguments)
    names = beside.engines(arguments.engines)
    source = _source(arguments, names)
    for name in names:
        if name != OURS and not known.peer(name).SERVES:
            raise UsageError(name, "requests cannot be put to it as they arrive", "leave this peer out")
    threads = options.threads(arguments)
    cells = list(_cells(arguments, source))
    make_room(arguments, arguments.concurrency)
    commands = {name: lineup.command(name, arguments, source, threads) for name in names}
    kinds = ["mixed", *arguments.against]
    count = len(cells) * len(names) * len(kinds) * (arguments.warmup + arguments.iters)
    found: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    bar = tqdm(total=count, unit="round", disable=None, file=sys.stderr)
    with lineup.running(commands, arguments.timeout) as engines, bar:
        told = {engine.name: engine.introduction for engine in engines}
        vocab = min(int(one["details"]["vocab"]) for one in told.values())
        context = _context(arguments, told, source)
        load = _workload(arguments, source, context)
        for cell in cells:
            times = {engine.name: _give(engine, cell, arguments.lora_scale, source) for engine in engines}
            measured = adapter_comparison.rounds(
                engines,
                load,
                list(cell.paths),
                vocab,
                context,
                places=arguments.concurrency,
                warmup=arguments.warmup,
                count=arguments.iters,
                variants=kinds,
                done=bar.update,
            )
            figures = adapter_comparison.compared(measured, threads, is_closed=_is_closed(arguments))
            found.append({**cell.facts, **_with_times(figures, times)})
            shown: dict[str, Any] = dict(found[0]) if arguments.sweep is None else {"measurements": list(found)}
            shown["seconds_in_all"] = time.monotonic() - begin
            result = lineup.record(NAME, arguments, told, shown, threads=threads, **_facts(arguments, told, source))
            zipf_options.save(result, arguments, is_last=False)
    zipf_options.save(result, arguments, is_last=True)
    return options.deliver(result, arguments, zipf_options.show(found, profile=arguments.profile))


def _source(arguments: argparse.Namespace, names: Sequence[str]) -> Path:
    """Return the model's directory or GGUF; other engines read only Hugging Face directories."""
    if arguments.synthetic or set(names) != {OURS} or exports.is_gguf(Path(arguments.model).expanduser()):
        return lineup.source(arguments)
    from infeng_convert.api import find

    return find(arguments.model, Plugins.discover(options.config(arguments)))


def _cells(arguments: argparse.Namespace, source: Path) -> Iterator[Cell]:
    """Yield the adapters of each measurement; random ones are made first."""
    if arguments.adapter:
        yield Cell(arguments.adapter, {"adapters": len(arguments.adapter)})
        return
    model = arguments.synthetic or (_sizes(source) if exports.is_gguf(source) else source)
    sweep = arguments.sweep or {"adapters": [arguments.adapters], "rank": [arguments.rank]}
    for count, rank in itertools.product(sweep["adapters"], sweep["rank"]):
        ranks = [int(part) for part in str(rank).split(",")]
        paths = adapters.random_adapters(model, count, ranks, arguments.targets)
        shown = ranks[0] if len(ranks) == 1 else str(rank)
        yield Cell(paths, {"adapters": count, "rank": shown, "targets": arguments.targets})


def _sizes(file: Path) -> ModelConfig:
    """Return the sizes of a GGUF; raises ModelError if it is not a model."""
    config = EngineConfig()
    plugins = Plugins.discover(config)
    return shape_and_formats(str(file), config, format_lookup(plugins), plugins)[0]


def _workload(arguments: argparse.Namespace, source: Path, context: int) -> Workload:
    lengths = prompt_texts.random_lengths(arguments.prompts)
    texts: list[list[int]] = []
    if lengths is None and not arguments.trace:
        texts = _encoded(prompt_texts.texts(arguments.prompts, arguments.data), source)
    arrived = []
    if arguments.trace:
        arrived = trace(arguments.trace, arguments.num_requests, arguments.speed, context)
    return Workload(
        arguments.num_requests,
        arguments.max_new_tokens or (None if arrived else zipf_options.NEW),
        arguments.zipf_alpha,
        arguments.include_base,
        arguments.seed,
        math.inf if arguments.rate is None else arguments.rate,
        lengths,
        texts,
        arrived,
    )


def _encoded(texts: Sequence[str], source: Path) -> list[list[int]]:
    from infeng_tokenizers.api import HfTokenizer

    if exports.is_gguf(source):
        why = f"texts are encoded by a tokenizer.json, which is not beside {source.name}"
        raise UsageError("--prompts", why, "give --prompts random:LENGTH, or the model's directory")
    found = [ids for ids in HfTokenizer(source, EngineConfig()).encode(list(texts)) if ids]
    if not found:
        raise UsageError("prompts", "no prompt has a token", "give other prompts")
    return found


def _context(arguments: argparse.Namespace, told: Mapping[str, Mapping[str, Any]], source: Path) -> int:
    """Return the most positions of a request: the least of --n-ctx and the engines' contexts, or the model's."""
    known: list[int] = [int(one["details"]["context"]) for one in told.values() if "context" in one["details"]]
    if not known and exports.is_gguf(source):
        known = [_sizes(source).max_positions]
    elif not known:
        known = [int(json.loads((source / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"])]
    return min([*known, int(arguments.n_ctx)] if arguments.n_ctx else known)


def _give(engine: EngineProcess, cell: Cell, scale: float, source: Path) -> dict[str, float]:
    """Load the adapters into the engine twice; return the median load times of the first and the second time."""
    paths = dict(cell.paths)
    if engine.name != OURS:
        peer = known.peer(engine.name)
        paths = {name: exports.peer_adapter(peer, path, source) for name, path in paths.items()}
    wanted = [{"name": name, "path": str(path), "scale": scale} for name, path in paths.items()]
    first, again = engine.adapters(wanted), engine.adapters(wanted)
    return {"adapter_load_ms": statistics.median(first.values()), "adapter_swap_ms": statistics.median(again.values())}


def _with_times(figures: dict[str, Any], times: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the figures with the load times of adapters."""
    base = figures.get("base", next(iter(times)))
    if "engines" in figures:
        figures["engines"] = {name: {**one, **times[name]} for name, one in figures["engines"].items()}
    return {**figures, **times[base]}


def _is_closed(arguments: argparse.Namespace) -> bool:
    return arguments.trace is None and arguments.rate is None


def _facts(arguments: argparse.Namespace, told: Mapping[str, Mapping[str, Any]], source: Path) -> dict[str, Any]:
    """Return the facts of the measurement for a result."""
    traced = arguments.trace is not None
    details = told.get(OURS, {}).get("details", {})
    format = source.name if exports.is_gguf(source) else FORMAT
    return {
        "format": arguments.format or details.get("formats", [format])[0],
        "num_requests": arguments.num_requests,
        "concurrency": arguments.concurrency,
        "zipf_alpha": arguments.zipf_alpha,
        "include_base": arguments.include_base,
        "prompts": None if traced else arguments.prompts,
        "max_new_tokens": arguments.max_new_tokens or (None if traced else zipf_options.NEW),
        "arrival": "closed" if _is_closed(arguments) else "trace" if traced else "poisson",
        "request_rate": arguments.rate,
        "trace": Path(arguments.trace).name if traced else None,
        "speed": arguments.speed if traced else None,
        "lora_scale": arguments.lora_scale,
        "warmup": arguments.warmup,
        "iters": arguments.iters,
    }
