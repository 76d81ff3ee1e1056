"""`infeng bench throughput`: many requests of different lengths, all at once or as a Poisson process."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from infeng_bench import options
from infeng_bench.engine.session import opened
from infeng_bench.load.arrivals import Arrival, Lengths, arrivals
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.serving import Job, serve, summary
from infeng_bench.stats.rates import rows_of_traffic

NAME = "throughput"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=options.positive, default=64, metavar="N", help="how many requests")
    help = "requests a second, Poisson; inf: all at once"
    parser.add_argument("--rate", type=options.rate, default=math.inf, metavar="R", help=help)
    help = "tokens of prompts: N, LOW:HIGH or lognormal:MEDIAN:SIGMA"
    parser.add_argument("--input-len", type=Lengths.parse, default="64:512", metavar="L", help=help)
    help = "new tokens, likewise"
    parser.add_argument("--output-len", type=Lengths.parse, default="16:128", metavar="L", help=help)
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy")
    options.add_seed(parser, "everything drawn")
    options.add_run(parser)


def run(arguments: argparse.Namespace) -> int:
    with opened(arguments) as session:
        engine = session.engine
        context = min(engine.limits.context, engine.limits.tokens)
        requests = arrivals(
            arguments.requests, arguments.rate, arguments.input_len, arguments.output_len, arguments.seed, context
        )
        wanted = jobs(requests, arguments.seed, engine.model.config.vocab, arguments.temperature)
        session.restart()
        with tqdm(total=len(wanted), desc="requests", leave=False, disable=None) as bar:
            traces = serve(engine, wanted, done=bar.update)
        drafted = sum(trace.drafted for trace in traces)
        acceptance = sum(trace.accepted for trace in traces) / drafted if drafted else None
        figures = {**summary(traces), "acceptance": acceptance}
        result = session.record(
            NAME,
            figures,
            seed=arguments.seed,
            request_rate=None if math.isinf(arguments.rate) else arguments.rate,
            input_len=str(arguments.input_len),
            output_len=str(arguments.output_len),
            temperature=arguments.temperature,
        )
    options.deliver(result, arguments, options.columns(_table(result)))
    return 0


def jobs(requests: Sequence[Arrival], seed: int, vocab: int, temperature: float) -> list[Job]:
    """Return the requests with random prompts."""
    return [
        Job(request.at, random_ids(request.prompt, seed, index, vocab), request.new, None, temperature, seed + index)
        for index, request in enumerate(requests)
    ]


def _table(result: dict[str, Any]) -> Iterator[list[str]]:
    yield from rows_of_traffic(result)
    yield ["prompt tokens", f"{result['total_input_tokens']}"]
    yield ["new tokens", f"{result['total_output_tokens']}"]
    yield ["cores busy", f"{result['cpu_utilization']:.0%}"]
