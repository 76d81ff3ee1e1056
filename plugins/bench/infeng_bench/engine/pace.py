"""Decoding beside the prefill of a long prompt: inter-token latency, and the prompt's delay."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from infeng_bench.engine.running import MeasurementError, greedy
from infeng_bench.load.prompts import random_ids
from infeng_bench.stats.summary import percentile
from infeng_core.api import Engine

LEARNING = 256  # tokens of a first prompt, from which the scheduler's cost model learns


@dataclass(frozen=True)
class PromptBeside:
    """The prefill of a long prompt and the decoding beside it."""

    seconds: float  # until the prompt's first token
    tokens: int  # new tokens of the decoding sequences meanwhile
    gaps: tuple[float, ...]  # seconds between two steps that gave them tokens


def beside(engine: Engine, rows: int, tokens: int, seed: int) -> PromptBeside:
    """Decode ``rows`` sequences and submit a prompt of ``tokens`` beside them.

    Raises MeasurementError if a sequence ends before the prompt has its first token.
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
        raise MeasurementError("pace", why, "give a shorter --prompt, or a model of a longer context")
    return PromptBeside(seconds, count, tuple(gaps))


def figures(paced: list[PromptBeside], free: list[PromptBeside], tokens: int) -> dict[str, Any]:
    """Return the figures of rounds with bounded steps, compared with rounds of unbounded steps (``free``)."""
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
