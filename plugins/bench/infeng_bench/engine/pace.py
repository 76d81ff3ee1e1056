"""Decoding beside the prefill of a long prompt: inter-token latency, and the prompt's delay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from infeng_bench import options
from infeng_bench.engine.running import MeasurementError
from infeng_bench.engine.session import Sides
from infeng_bench.load.place import Place
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.requests import Job
from infeng_bench.stats.summary import percentile

LEARNING = 256  # tokens of a first prompt, from which the scheduler's cost model learns
SHORT = 16  # prompt tokens of the decoding sequences


SHOWN = {
    "median_itl_ms": ("time between tokens, median ms", 1.0),
    "p99_itl_ms": ("p99 ms", 1.0),
    "p99_itl_ms_unbounded": ("p99 ms, steps of any length", 1.0),
    "prefill_tokens_per_s": ("tokens of prompts/s", 1.0),
    "decode_tokens_per_s": ("tokens decoded/s", 1.0),
    "prefill_loss": ("the prompt is later by", 1.0),
    "total_loss": ("all tokens/s are less by", 1.0),
}
"""The figures of a printed table, as in ``options.listed``."""


@dataclass(frozen=True)
class PromptBeside:
    """The prefill of a long prompt and the decoding beside it."""

    seconds: float  # until the prompt's first token
    tokens: int  # new tokens of the decoding sequences meanwhile
    gaps: tuple[float, ...]  # seconds between two steps that gave a sequence tokens


def beside(place: Place, rows: int, tokens: int, seed: int) -> PromptBeside:
    """Decode ``rows`` sequences and send a prompt of ``tokens`` beside them.

    Raises MeasurementError if a sequence ends before the prompt has its first token.
    """

    def job(length: int, index: int, new: int) -> Job:
        return Job(0.0, random_ids(length, seed, index, place.vocab), new)

    place.whole(job(min(LEARNING, tokens), rows + 1, SHORT))
    decoding = [place.ask(job(SHORT, row, place.context - SHORT)) for row in range(rows)]
    place.until(lambda: all(one.count or one.is_over for one in decoding))
    begin, before = place.now(), sum(one.count for one in decoding)
    prompt = place.ask(job(tokens, rows, 1))
    place.until(lambda: prompt.is_over)
    place.settle()  # tokens of the same step for the decoding sequences
    place.check([prompt])
    ended = sum(one.is_over for one in decoding)
    for one in decoding:
        place.drop(one)
    if ended:
        why = f"{ended} of {rows} sequences reached the end of the context beside the prompt"
        raise MeasurementError("pace", why, "give a shorter --prompt, or a model of a longer context")
    moments = [[*[t for t in one.times if t <= begin][-1:], *[t for t in one.times if t > begin]] for one in decoding]
    gaps = [late - early for each in moments for early, late in pairwise(each) if late > early]
    return PromptBeside(prompt.times[0] - begin, sum(one.count for one in decoding) - before, tuple(gaps))


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


def measured(
    opened: Callable[[dict[str, object]], AbstractContextManager[Sides]],
    rows: int,
    tokens: int,
    step_ms: int,
    rounds: int,
    *,
    seed: int,
    kind: str,
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the figures of each side, and the record of the run.

    Rounds alternate between steps of ``step_ms`` and unbounded ones. opened: settings -> the sides.
    kind: of the record.
    """
    found: dict[str, dict[int, list[PromptBeside]]] = {}
    record: dict[str, Any] = {}
    for number in options.progress(range(rounds), "pace"):
        for bound in (step_ms, 0):
            with opened({"kv_cache__prefix": False, "scheduler__step_ms": bound}) as sides:
                for side, place_of in sides.places.items():
                    with place_of() as place:
                        one = beside(place, rows, tokens, seed + number)
                    found.setdefault(side, {step_ms: [], 0: []})[bound].append(one)
                record = sides.session.record(kind, {}, seed=seed)
    return {side: figures(one[step_ms], one[0], tokens) for side, one in found.items()}, record
