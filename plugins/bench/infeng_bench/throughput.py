"""`infeng bench throughput`: many requests of different lengths, all at once or as they come in."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from tqdm import tqdm

from infeng_bench import options
from infeng_bench.arrivals import Arrival, Lengths, arrivals
from infeng_bench.session import opened
from infeng_bench.spread import latencies
from infeng_bench.works import FIRST_ID
from infeng_core.engine import Engine
from infeng_core.request import SamplingParams
from infeng_core.stream import Stream

NAME = "throughput"
HELP = "measure many requests in flight: throughput and latencies"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--requests", type=options.positive, default=64, metavar="N", help="how many (64)")
    parser.add_argument(
        "--rate", type=_rate, default=math.inf, metavar="R", help="requests a second, Poisson (default: all at once)"
    )
    form = "N, LOW:HIGH or lognormal:MEDIAN:SIGMA"
    parser.add_argument(
        "--input-len", type=Lengths.parse, default="64:512", metavar="L", help=f"tokens of prompts: {form} (64:512)"
    )
    parser.add_argument(
        "--output-len", type=Lengths.parse, default="16:128", metavar="L", help="new tokens, likewise (16:128)"
    )
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (1)")
    parser.add_argument("--seed", type=options.natural, default=0, metavar="S", help="seed of everything drawn (0)")
    options.add_model(parser)
    options.add_output(parser)
    parser.set_defaults(roofline="none")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    with opened(arguments) as session:
        engine = session.engine
        context = min(engine.limits.context, engine.limits.kv_blocks * 16)
        requests = arrivals(
            arguments.requests,
            arguments.rate,
            arguments.input_len,
            arguments.output_len,
            arguments.seed,
            context,
        )
        session.restart()
        traces = serve(engine, requests, arguments.seed, arguments.temperature)
        figures = summary(traces)
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


@dataclass(eq=False)
class Trace:
    """What became of one request; moments are seconds after the beginning."""

    arrival: Arrival
    stream: Stream
    tokens: list[float] = field(default_factory=list)
    """When each new token was there."""
    drafted: int = 0
    accepted: int = 0


def serve(engine: Engine, requests: Sequence[Arrival], seed: int, temperature: float) -> list[Trace]:
    """Submit each request when its time has come, run the engine, and note when every token was there."""
    vocab = engine.model.config.vocab
    waiting = [(request, _prompt(request, seed, index, vocab)) for index, request in enumerate(requests)][::-1]
    traces: list[Trace] = []
    running: list[Trace] = []
    bar = tqdm(total=len(requests), desc="requests", leave=False, disable=None)
    begin = time.perf_counter()
    while waiting or running:
        now = time.perf_counter() - begin
        while waiting and waiting[-1][0].at <= now:
            request, prompt = waiting.pop()
            params = SamplingParams(
                temperature=temperature, max_tokens=request.new, ignore_eos=True, seed=seed + len(traces)
            )
            trace = Trace(request, engine.submit(prompt, params))
            traces.append(trace)
            running.append(trace)
        if not running:
            time.sleep(max(0.0, waiting[-1][0].at - (time.perf_counter() - begin)))
            continue
        engine.step()
        now = time.perf_counter() - begin
        for trace in running:
            for event in trace.stream.pending():
                trace.tokens += [now] * len(event.token_ids)
                if event.completion is not None:
                    trace.drafted = event.completion.usage.drafted_tokens
                    trace.accepted = event.completion.usage.accepted_tokens
        open_before = len(running)
        running = [trace for trace in running if not trace.stream.finished]
        bar.update(open_before - len(running))
    bar.close()
    return traces


def summary(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the figures by the names of ``vllm bench serve``.

    Latencies count from a request's arrival, also while it waits for a place in the batch. TPOT is a request's mean
    time per token after its first, ITL the time between two steps that gave it tokens.
    """
    duration = max(trace.tokens[-1] for trace in traces)
    prompts = sum(trace.arrival.prompt for trace in traces)
    new = sum(len(trace.tokens) for trace in traces)
    several = [trace for trace in traces if len(trace.tokens) > 1]
    gaps = [late - early for trace in traces for early, late in pairwise(trace.tokens) if late > early]
    drafted = sum(trace.drafted for trace in traces)
    return {
        "completed": len(traces),
        "duration": duration,
        "total_input_tokens": prompts,
        "total_output_tokens": new,
        "request_throughput": len(traces) / duration,
        "output_throughput": new / duration,
        "total_token_throughput": (prompts + new) / duration,
        **latencies("ttft", [trace.tokens[0] - trace.arrival.at for trace in traces]),
        **latencies("tpot", [(t.tokens[-1] - t.tokens[0]) / (len(t.tokens) - 1) for t in several]),
        **latencies("itl", gaps),
        **latencies("e2el", [trace.tokens[-1] - trace.arrival.at for trace in traces]),
        "acceptance": sum(trace.accepted for trace in traces) / drafted if drafted else None,
    }


def _prompt(request: Arrival, seed: int, index: int, vocab: int) -> list[int]:
    rng = np.random.default_rng([seed, 2, index])
    drawn: list[int] = rng.integers(min(FIRST_ID, vocab - 1), vocab, request.prompt).tolist()
    return drawn


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of requests a second above 0, or inf")
    return rate


def _table(result: dict[str, Any]) -> Iterator[list[str]]:
    yield ["requests", f"{result['completed']} in {result['duration']:.1f} s"]
    yield ["prompt tokens", f"{result['total_input_tokens']}"]
    yield ["new tokens", f"{result['total_output_tokens']}"]
    yield ["requests/s", f"{result['request_throughput']:.2f}"]
    yield ["new tokens/s", f"{result['output_throughput']:.1f}"]
    yield ["all tokens/s", f"{result['total_token_throughput']:.1f}"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"median_{name}_ms" in result:
            yield [f"{name} ms", f"median {result[f'median_{name}_ms']:.1f}, p99 {result[f'p99_{name}_ms']:.1f}"]
    yield ["cores busy", f"{result['cpu_utilization']:.0%}"]
