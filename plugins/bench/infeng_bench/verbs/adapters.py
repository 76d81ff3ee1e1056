"""`infeng bench adapters`: thousands of adapters in a folder, few of them in memory, beside all of them in memory."""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infeng_bench import options
from infeng_bench.engine.closed_loop import Answered, Asked, answered
from infeng_bench.engine.running import MeasurementError
from infeng_bench.engine.session import Session, opened
from infeng_bench.load.traffic import weights
from infeng_bench.models import packed_adapters
from infeng_bench.stats.paired import upper_bound
from infeng_bench.stats.summary import latencies, percentile
from infeng_core.api import Engine

NAME = "adapters"

COUNT, RESIDENT, REQUESTS, ROUNDS = 2000, 64, 1000, 10
STARTS = 3
SETTLING = 4  # requests for each place in memory, before anything is timed: who is in memory then follows from Zipf
GOALS = {"start_more_s": 1.0, "bytes_per_name": 1024, "median_ratio": 1.3, "p99_ratio": 3.0}


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--count", options.positive, COUNT, "N", "adapters in the folder")
    options.add(parser, "--zipf", options.up_to(16), 1.0, "Z", "adapter k is asked for with weight 1 / (k + 1)^Z")
    options.add(parser, "--resident", options.positive, RESIDENT, "R", "adapters in memory")
    options.add(parser, "--requests", options.positive, REQUESTS, "N", "timed requests of each side")
    options.add(parser, "--concurrency", options.positive, 4, "N", "requests at a time")
    options.add(parser, "--prompt", options.positive, 64, "N", "tokens of a prompt")
    options.add(parser, "--new-tokens", options.positive, 16, "N", "tokens of an answer")
    options.add(parser, "--rank", options.positive, 4, "R", "rank of the adapters")
    options.add(parser, "--targets", str, "qv", "T", "what they change: all, qv, or modules such as q_proj,down_proj")
    options.add(parser, "--starts", options.positive, STARTS, "N", "starts of the engine with and without the folder")
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Make the adapters, measure starts, names and both sides in turn, print and write."""
    settings: dict[str, object] = {"adapters__dtype": packed_adapters.STORAGE}
    drawn = _drawn(arguments)
    with opened(arguments, **settings) as session:
        begin = time.perf_counter()
        folder, nbytes = _folder(session, arguments, drawn)
        made = time.perf_counter() - begin
        starts = _starts(session, str(folder), arguments.starts)
    known: dict[str, object] = {**settings, "adapters__directory": [str(folder)]}
    memory = 2 * nbytes * len(set(drawn)) + (64 << 20)  # an adapter is placed in whole pages
    with (
        opened(arguments, **known, adapters__max_resident=arguments.resident) as few,
        opened(arguments, **known, adapters__memory=memory) as every,
    ):
        names = {**_times_of_names(few.engine), **_bytes_of_names(every.engine)}
        sides = _sides(few, every, arguments, drawn)
        record = few.record(
            NAME,
            {
                **_facts(arguments),
                "drawn": len(set(drawn)),
                "adapter_bytes": nbytes,
                "making_seconds": made,
                **starts,
                **names,
                **sides,
                "goals": GOALS,
            },
            seed=arguments.seed,
            rounds=arguments.rounds,
        )
    return options.deliver(record, arguments, options.columns(_table(record)))


def _facts(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("count", "zipf", "resident", "requests", "concurrency", "prompt", "new_tokens", "rank", "targets")
    return {name: getattr(arguments, name) for name in names}


def _drawn(arguments: argparse.Namespace) -> list[int]:
    """Return the number of each request's adapter."""
    rng, shares = np.random.default_rng(arguments.seed), weights(arguments.count, arguments.zipf)
    return [int(number) for number in rng.choice(arguments.count, arguments.requests, p=shares)]


def _folder(session: Session, arguments: argparse.Namespace, drawn: Sequence[int]) -> tuple[Path, int]:
    shape = arguments.synthetic or arguments.model
    return packed_adapters.folder_of(
        session.engine, shape, arguments.count, drawn, rank=arguments.rank, targets=arguments.targets
    )


def _starts(session: Session, folder: str, count: int) -> dict[str, Any]:
    """Return the seconds of starts without and with the folder, in turn."""
    config, taken = session.engine.config, {False: [0.0] * 0, True: [0.0] * 0}
    for number in range(2 * count):
        has_folder = bool(number % 2) != bool(number // 2 % 2)
        overrides: dict[str, object] = {"model.path": config.model.path, "model.format": config.model.format}
        overrides |= {"adapters.directory": [folder]} if has_folder else {}
        begin = time.perf_counter()
        with Engine(overrides=overrides):
            taken[has_folder].append(time.perf_counter() - begin)
    more = [there - plain for plain, there in zip(taken[False], taken[True], strict=True)]
    return {
        "start_s": statistics.median(taken[False]),
        "start_with_folder_s": statistics.median(taken[True]),
        "start_more_s": statistics.median(more),
    }


def _times_of_names(engine: Engine) -> dict[str, float]:
    """Return the seconds of a list of all names, and of looking one up."""
    begin = time.perf_counter()
    names = _listed(engine)
    listed = time.perf_counter()
    for name in names:
        engine.adapters.reload(name)  # of one that is not in memory, it only remembers the name
    return {"listing_s": listed - begin, "look_up_us": 1e6 * (time.perf_counter() - listed) / len(names)}


def _bytes_of_names(engine: Engine) -> dict[str, float]:
    """Return the bytes of memory that a name takes once it was listed, and the further ones once it was asked for."""
    with _traced() as held:
        count = len(_listed(engine))
        per_name = held() / count
        names = _listed(engine)
        before = held()
        for name in names:
            engine.adapters.reload(name)
        per_asked = (held() - before) / count
    return {
        "bytes_per_listed_name": per_name,
        "bytes_per_asked_name": per_asked,
        "bytes_per_name": per_name + per_asked,
    }


def _listed(engine: Engine) -> list[str]:
    names: list[str] = []
    while more := engine.adapters.available(names[-1] if names else "", 1000):
        names += more
    return names


@contextlib.contextmanager
def _traced() -> Iterator[Any]:
    """Yield what returns the bytes of Python's objects that were made inside the block and are still there."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()


def _sides(few: Session, every: Session, arguments: argparse.Namespace, drawn: Sequence[int]) -> dict[str, Any]:
    """Return the figures of both sides, which answer the same requests in turn."""
    rng, vocab = np.random.default_rng(arguments.seed + 1), few.engine.model.config.vocab
    asked = [
        Asked(packed_adapters.name_of(number), tuple(rng.integers(3, vocab, arguments.prompt).tolist()))
        for number in drawn
    ]
    _settle(few.engine, asked[-SETTLING * arguments.resident :])
    _settle(every.engine, asked)
    if (missing := len(set(drawn)) - every.engine.adapters.totals().resident) > 0:
        raise MeasurementError(NAME, f"{missing} adapters have no room", "give fewer --requests, or a lower --rank")
    few.restart()
    engines = {"few": few.engine, "all": every.engine}
    found: dict[str, list[list[Answered]]] = {name: [] for name in engines}
    parts = [asked[begin :: arguments.rounds] for begin in range(arguments.rounds)]
    parts = [part for part in parts if part]
    for number, part in enumerate(options.progress(parts, "rounds")):
        for name in list(engines)[:: 1 if number % 2 else -1]:
            found[name].append(answered(engines[name], part, arguments.concurrency, arguments.new_tokens))
    return _compared(found["few"], found["all"])


def _settle(engine: Engine, asked: Sequence[Asked]) -> None:
    """Bring the adapters of requests into memory, one after another."""
    for one in asked:
        engine.check_adapters(one.adapter)
    if asked:
        answered(engine, asked[-1:], 1, 1)


def _compared(few: Sequence[Sequence[Answered]], every: Sequence[Sequence[Answered]]) -> dict[str, Any]:
    """Return the times of both sides, and the ratios of their medians and 99th percentiles with upper bounds.

    few, every: by round.
    """
    pairs = [(_first(a), _first(b)) for a, b in zip(few, every, strict=True)]
    mine, other = [s for a, _ in pairs for s in a], [s for _, b in pairs for s in b]
    medians = [statistics.median(a) / statistics.median(b) for a, b in pairs]
    tails = [percentile(a, 0.99) / percentile(b, 0.99) for a, b in pairs]
    cold = [one for part in few for one in part if one.load is not None]
    loads = [one.load for one in cold if one.load is not None]
    again = sum(one.load is not None for part in every for one in part)
    return {
        "ttft": {"few": latencies("ttft", mine), "all": latencies("ttft", other)},
        "cold_ttft": latencies("ttft", [one.first_token for one in cold]),
        "cold_share": len(cold) / len(mine),
        "cold_share_all": again / len(other),
        "load": latencies("load", loads),
        "median_ratio": statistics.median(mine) / statistics.median(other),
        "median_ratio_high": upper_bound(medians).value,
        "p99_ratio": percentile(mine, 0.99) / percentile(other, 0.99),
        "p99_ratio_high": upper_bound(tails).value,
        "ratio_confidence": upper_bound(medians).confidence,
        "round_ratios": medians,
    }


def _first(part: Sequence[Answered]) -> list[float]:
    return [one.first_token for one in part]


def _table(found: Mapping[str, Any]) -> Iterator[list[str]]:
    few, every = found["ttft"]["few"], found["ttft"]["all"]
    yield ["", f"{found['resident']} in memory", "all in memory", "ratio", "at most", "goal"]
    for key in ("median", "p99"):
        times = [f"{side[f'{key}_ttft_ms']:.2f}" for side in (few, every)]
        ratios = [f"{found[f'{key}_ratio']:.2f}", f"{found[f'{key}_ratio_high']:.2f}", f"{GOALS[f'{key}_ratio']:g}"]
        yield [f"TTFT, {key}, ms", *times, *ratios]
    yield ["requests whose adapter was loaded", f"{found['cold_share']:.0%}", f"{found['cold_share_all']:.0%}"]
    if found["load"]:
        yield [
            "load, median and p99, ms",
            f"{found['load']['median_load_ms']:.2f}",
            f"{found['load']['p99_load_ms']:.2f}",
        ]
        cold = found["cold_ttft"]
        yield ["their TTFT, median and p99, ms", f"{cold['median_ttft_ms']:.2f}", f"{cold['p99_ttft_ms']:.2f}"]
    start, plain = found["start_with_folder_s"], found["start_s"]
    yield [
        f"start with {found['count']} names, s",
        f"{start:.2f}",
        f"{plain:.2f}",
        f"{found['start_more_s']:+.3f} s",
        "",
        "1 s",
    ]
    yield [
        "a name in memory: listed, asked for, bytes",
        f"{found['bytes_per_listed_name']:.0f}",
        f"{found['bytes_per_asked_name']:.0f}",
        "",
        "",
        "1024",
    ]
    yield ["list all names, s; look one up, us", f"{found['listing_s']:.3f}", f"{found['look_up_us']:.1f}"]
