"""`infeng bench swap`: the load time of an adapter, and its effect on the step times of the running batch."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infeng_peft.api import convert_adapter

from infeng_bench import options
from infeng_bench.engine.running import MeasurementError, greedy
from infeng_bench.engine.session import opened
from infeng_bench.engine.work import Work
from infeng_bench.models.adapters import peft_directory
from infeng_bench.stats.summary import percentile, spread
from infeng_core.api import Engine, Stream
from infeng_core.api.kernels import A_FORMATS

NAME = "swap"

ROUNDS = 20
SETTLE = 8  # undisturbed steps between two swaps


@dataclass(frozen=True)
class Swap:
    """The load of one adapter while the batch ran, in seconds."""

    load: float  # from the first byte read until it was resident
    wait: float  # from the request for it until it was resident
    steps: tuple[float, ...]  # of the steps between the request and residency


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--rows", options.positive, 4, "N", "sequences that decode")
    options.add(parser, "--context", options.positive, 128, "N", "tokens of each")
    options.add_adapters(parser)
    parser.add_argument("--storage", choices=A_FORMATS, default="int8", help="of A and B in memory")
    help = "what is read: converted, or as PEFT saves it"
    parser.add_argument("--source", choices=("artifact", "peft"), default="artifact", help=help)
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="infeng-swap-") as folder,
        opened(
            arguments, adapters__dtype=arguments.storage, adapters__max_resident=1, adapters__cache="none"
        ) as session,
    ):
        engine = session.engine
        for index in range(2):  # each evicts the other
            engine.adapters.load(f"swap{index}", _directory(engine, arguments, index, Path(folder)))
        idle = [_idle(engine, index) for index in range(min(arguments.rounds, 6))][2:] or [_idle(engine, 0)]
        plain, swaps = _measure(engine, arguments)
        figures = _figures(plain, swaps, idle)
        figures |= {"rank": arguments.rank, "targets": arguments.targets, "source": arguments.source}
        figures |= {"storage": arguments.storage, "rows": arguments.rows, "context": arguments.context}
        figures["adapter_bytes"] = engine.adapters.infos()[0].bytes
        figures["work"] = str(Work("decode", arguments.rows, arguments.context, SETTLE))
        result = session.record(NAME, figures, seed=arguments.seed, rounds=arguments.rounds)
    return options.deliver(result, arguments, options.columns(_table(figures)))


def _directory(engine: Engine, arguments: argparse.Namespace, index: int, folder: Path) -> Path:
    shape = arguments.synthetic or arguments.model
    source = peft_directory(shape, arguments.rank, arguments.targets, arguments.seed + index)
    if arguments.source == "peft":
        return source
    dest = folder / str(index)
    return convert_adapter(source, dest, engine.model, arguments.storage, providers=engine.plugins).path


def _idle(engine: Engine, index: int) -> float:
    """Return the seconds of a load in an idle engine."""
    name = f"swap{index % 2}"
    engine.submit([1], greedy(1), adapter=name).result()
    return engine.adapters[name].load_seconds or 0.0


def _measure(engine: Engine, arguments: argparse.Namespace) -> tuple[list[float], list[Swap]]:
    """Return the seconds of undisturbed steps, and the swaps between them; all rows decode in every step.

    Raises MeasurementError if rows repeatedly end before a swap does.
    """
    prompts = Work("decode", arguments.rows, arguments.context, 1).prompts(arguments.seed, engine.model.config.vocab)
    plain: list[float] = []
    swaps: list[Swap] = []
    streams: list[Stream] = []
    for tries in itertools.count():
        if len(swaps) == arguments.rounds:
            break
        if tries > 2 * arguments.rounds + 1:
            why = f"its rows ended before a load had, {tries - len(swaps)} times"
            raise MeasurementError(NAME, why, "give a shorter --context, or a model of a longer one")
        if not streams:
            streams = [engine.submit(prompt, greedy(engine.limits.context)) for prompt in prompts]
            while not all(stream.is_ready for stream in streams):
                engine.step()
        for stream in streams:
            stream.pending()
        steps = [_step(engine) for _ in range(SETTLE)]
        swap = _swap(engine, f"swap{tries % 2}")
        if any(stream.finished for stream in streams):  # fewer rows decoded in some of these steps
            for stream in streams:
                stream.cancel()
            streams = []
            continue
        plain += steps
        swaps.append(swap)
    for stream in streams:
        stream.cancel()
    return plain, swaps


def _swap(engine: Engine, name: str) -> Swap:
    begin = time.perf_counter()
    request = engine.submit([1], greedy(1), adapter=name)
    steps = []
    while engine.adapters[name].state != "resident":
        steps.append(_step(engine))
    wait = time.perf_counter() - begin
    request.result()
    return Swap(engine.adapters[name].load_seconds or 0.0, wait, tuple(steps))


def _step(engine: Engine) -> float:
    begin = time.perf_counter()
    engine.step()
    return time.perf_counter() - begin


def _figures(plain: list[float], swaps: list[Swap], idle: list[float]) -> dict[str, Any]:
    during = [seconds for swap in swaps for seconds in swap.steps]
    median = statistics.median(plain)
    return {
        "adapter_swap_ms": 1000 * statistics.median(swap.load for swap in swaps),
        "adapter_swap": spread([1000 * swap.load for swap in swaps]),
        "adapter_wait_ms": 1000 * statistics.median(swap.wait for swap in swaps),
        "idle_adapter_swap_ms": 1000 * statistics.median(idle),
        "median_itl_ms": 1000 * median,
        "p99_itl_ms": 1000 * percentile(plain, 0.99),
        "swap_itl": spread([1000 * seconds for seconds in during]),
        "swap_itl_ratio": statistics.median(during) / median,
        "swap_itl_ratio_p90": percentile(during, 0.9) / median,
        "swap_itl_ratio_max": max(during) / median,
        "swaps": len(swaps),
    }


def _table(figures: dict[str, Any]) -> Iterator[list[str]]:
    yield ["", "median", "min", "max"]
    swap, itl = figures["adapter_swap"], figures["swap_itl"]
    yield ["load beside the batch, ms", *(f"{swap[name]:.1f}" for name in ("median", "min", "max"))]
    yield ["load while nothing runs, ms", f"{figures['idle_adapter_swap_ms']:.1f}"]
    yield ["from request to adapter, ms", f"{figures['adapter_wait_ms']:.1f}"]
    yield ["step undisturbed, ms", f"{figures['median_itl_ms']:.2f}"]
    yield ["step during a load, ms", *(f"{itl[name]:.2f}" for name in ("median", "min", "max"))]
    ratios = (figures[f"swap_itl_ratio{end}"] for end in ("", "_p90", "_max"))
    yield ["as a share: median, p90, max", *(f"{ratio:.2f}" for ratio in ratios)]
