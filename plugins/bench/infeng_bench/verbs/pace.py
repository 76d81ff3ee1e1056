"""`infeng bench pace`: what sequences that decode feel of a long prompt beside them, and what it loses."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from infeng_bench import options
from infeng_bench.engine.running import MeasurementError, greedy
from infeng_bench.engine.session import opened
from infeng_bench.load.prompts import random_ids
from infeng_bench.stats.summary import percentile
from infeng_core.api import Engine

NAME = "pace"

ROUNDS = 3
LEARNING = 256  # tokens of a prompt that runs first, from which the engine learns what its steps take


@dataclass(frozen=True)
class Beside:
    """A long prompt, and what came meanwhile."""

    seconds: float  # until its first token
    tokens: int  # of the sequences that decoded
    gaps: tuple[float, ...]  # seconds between two steps that gave them tokens


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--rows", type=options.positive, default=4, metavar="N", help="sequences that decode")
    parser.add_argument("--prompt", type=options.positive, default=1024, metavar="N", help="tokens of the prompt")
    help = "scheduler.step_ms that is compared"
    parser.add_argument("--step-ms", type=options.positive, default=100, metavar="MS", help=help)
    options.add_measurement(parser, ROUNDS)


def run(arguments: argparse.Namespace) -> int:
    """Measure in turn with steps of bounded time and without, print and write."""
    rounds: dict[int, list[Beside]] = {arguments.step_ms: [], 0: []}
    for number in options.progress(range(arguments.rounds), NAME):
        for step_ms, found in rounds.items():
            with opened(arguments, scheduler__step_ms=step_ms) as session:
                found.append(beside(session.engine, arguments.rows, arguments.prompt, arguments.seed + number))
                record = session.record(NAME, {}, seed=arguments.seed, rounds=arguments.rounds)
    record |= figures(rounds[arguments.step_ms], rounds[0], arguments.prompt)
    record |= {"rows": arguments.rows, "prompt": arguments.prompt, "step_ms": arguments.step_ms}
    options.deliver(record, arguments, options.columns(_table(record)))
    return 0


def beside(engine: Engine, rows: int, tokens: int, seed: int) -> Beside:
    """Let ``rows`` sequences decode, and a prompt of ``tokens`` come in beside them.

    Raises MeasurementError where a sequence ends before the prompt has its first token.
    """
    vocab = engine.model.config.vocab
    engine.submit(random_ids(min(LEARNING, tokens), seed, rows + 1, vocab), greedy(16)).result()
    decoding = [engine.submit(random_ids(16, seed, row, vocab), greedy(1 << 20)) for row in range(rows)]
    while not all(stream.is_ready for stream in decoding):
        engine.step()
    for stream in decoding:
        stream.pending()
    prompt = engine.submit(random_ids(tokens, seed, rows, vocab), greedy(1))
    begin = last = time.perf_counter()
    gaps, count = [], 0
    while not prompt.finished:
        engine.step()
        now = time.perf_counter()
        new = sum(len(event.token_ids) for stream in decoding for event in stream.pending())
        if new:
            gaps.append(now - last)
            last, count = now, count + new
    seconds = time.perf_counter() - begin
    ended = sum(stream.finished for stream in decoding)
    for stream in decoding:
        stream.cancel()
    if ended:
        why = f"{ended} of {rows} sequences reached the end of the context beside the prompt"
        raise MeasurementError(NAME, why, "give a shorter --prompt, or a model of a longer context")
    return Beside(seconds, count, tuple(gaps))


def figures(paced: list[Beside], free: list[Beside], tokens: int) -> dict[str, Any]:
    """Return the figures of rounds with bounded steps, against those ``free`` of the bound."""
    gaps = [1000 * gap for one in paced for gap in one.gaps]
    rate, rate_free = (median(tokens / one.seconds for one in found) for found in (paced, free))
    work, work_free = (median((tokens + one.tokens) / one.seconds for one in found) for found in (paced, free))
    return {
        "median_itl_ms": median(gaps),
        "p99_itl_ms": percentile(gaps, 0.99),
        "p99_itl_ms_unbounded": percentile([1000 * gap for one in free for gap in one.gaps], 0.99),
        "prefill_tokens_per_s": rate,
        "decode_tokens_per_s": median(one.tokens / one.seconds for one in paced),
        "prefill_loss": 1 - rate / rate_free,
        "total_loss": 1 - work / work_free,
    }


def _table(figures: dict[str, Any]) -> Iterator[list[str]]:
    yield ["time between tokens, ms", "median", "p99"]
    yield ["steps of bounded time", f"{figures['median_itl_ms']:.1f}", f"{figures['p99_itl_ms']:.1f}"]
    yield ["any step", "", f"{figures['p99_itl_ms_unbounded']:.1f}"]
    yield ["tokens of the prompt/s", f"{figures['prefill_tokens_per_s']:.1f}"]
    yield ["tokens decoded beside it/s", f"{figures['decode_tokens_per_s']:.1f}"]
    yield ["the prompt is later by", f"{figures['prefill_loss']:.0%}"]
    yield ["all tokens/s are less by", f"{figures['total_loss']:.0%}"]
