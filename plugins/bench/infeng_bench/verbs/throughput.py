"""`infeng bench throughput`: many requests of different lengths, all at once or as a Poisson process."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from infeng_bench import options
from infeng_bench.engine.place import EnginePlace
from infeng_bench.engine.session import opened
from infeng_bench.load.arrivals import Lengths
from infeng_bench.load.kinds import Load
from infeng_bench.load.outcomes import Outcomes, latencies_of, rates
from infeng_bench.load.traffic import draw
from infeng_bench.stats.rates import rows_of_traffic

NAME = "throughput"


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--requests", options.positive, 64, "N", "how many requests")
    options.add(parser, "--rate", options.rate, math.inf, "R", "requests a second, Poisson; inf: all at once")
    help = "tokens of prompts: N, LOW:HIGH or lognormal:MEDIAN:SIGMA"
    parser.add_argument("--input-len", type=Lengths.parse, default="64:512", metavar="L", help=help)
    options.add(parser, "--output-len", Lengths.parse, "16:128", "L", "new tokens, likewise")
    options.add(parser, "--temperature", float, 1.0, "T", "0 is greedy")
    options.add_seed(parser, "everything drawn")
    options.add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    with opened(arguments) as session:
        engine = session.engine
        lengths = f"prompt={arguments.input_len},output={arguments.output_len}"
        load = Load.parse(f"poisson:rate={arguments.rate},{lengths}")
        session.restart()
        with EnginePlace(engine) as place:
            drawn = draw(load, arguments.requests, arguments.seed, place.context)
            chance = {"temperature": arguments.temperature}
            jobs = [
                replace(job, **chance, seed=arguments.seed + index) for index, job in enumerate(drawn.jobs(place.vocab))
            ]
            with tqdm(total=len(jobs), desc="requests", leave=False, disable=None) as bar:
                replies, _ = place.run(jobs, done=bar.update)
        drafted = sum(reply.drafted for reply in replies)
        acceptance = sum(reply.accepted for reply in replies) / drafted if drafted else None
        figures = {**rates(Outcomes.of(replies)), **latencies_of(replies, is_closed=False), "acceptance": acceptance}
        result = session.record(
            NAME,
            figures,
            seed=arguments.seed,
            request_rate=None if math.isinf(arguments.rate) else arguments.rate,
            input_len=str(arguments.input_len),
            output_len=str(arguments.output_len),
            temperature=arguments.temperature,
        )
    return options.deliver(result, arguments, options.columns(_table(result)))


def _table(result: dict[str, Any]) -> Iterator[list[str]]:
    yield from rows_of_traffic(result)
    yield ["prompt tokens", f"{result['total_input_tokens']}"]
    yield ["new tokens", f"{result['total_output_tokens']}"]
    yield ["cores busy", f"{result['cpu_utilization']:.0%}"]
