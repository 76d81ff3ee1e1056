"""Runs a work on an engine and takes the time; decoding is timed apart from the prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from infeng_bench.works import Work
from infeng_core.api import SamplingParams, UsageError

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream


@dataclass(frozen=True)
class Timing:
    """What one work took."""

    tokens: int
    """Tokens that count, as ``Work.tokens`` says; more where guesses of the engine were right."""
    seconds: float
    """Wall-clock seconds of the part that counts."""
    prefill_seconds: float
    """Until every sequence had its first token."""
    steps: Sequence[float]
    """Seconds of each of the engine's steps of the part that counts."""
    first_tokens: Sequence[float]
    """Of each sequence, seconds from the beginning until its first token."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens that count per second."""
        return self.tokens / self.seconds


def greedy(tokens: int) -> SamplingParams:
    """Return how what is measured is drawn: the likeliest token, ``tokens`` of them, whatever they are."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def perform(engine: Engine, work: Work, seed: int, adapters: Sequence[str] = ()) -> Timing:
    """Do ``work`` on random prompts of ``seed``; the engine has nothing else to do and keeps nothing of it.

    adapters: the sequences use these in turn. Raises UsageError where the engine is too small for the work.
    """
    check(engine, work)
    params = greedy(_room(engine, work))
    prompts = work.prompts(seed, engine.model.config.vocab)
    streams: list[Stream] = []
    try:
        begin = time.perf_counter()
        users = [adapters[row % len(adapters)] if adapters else None for row in range(work.rows)]
        streams += [engine.submit(prompt, params, adapter=user) for prompt, user in zip(prompts, users, strict=True)]
        ends, firsts = _until_first_tokens(engine, streams)
        prefill = ends[-1] - begin
        first_tokens = [moment - begin for moment in firsts]
        if work.kind == "prefill":
            steps = [end - start for start, end in pairwise([begin, *ends])]
            return Timing(work.tokens, prefill, prefill, steps, first_tokens)
        for stream in streams:
            stream.pending()
        ends = [time.perf_counter()]
        for _ in range(work.steps):
            engine.step()
            ends.append(time.perf_counter())
        tokens = sum(len(event.token_ids) for stream in streams for event in stream.pending())
        steps = [end - start for start, end in pairwise(ends)]
        return Timing(tokens, ends[-1] - ends[0], prefill, steps, first_tokens)
    finally:
        for stream in streams:
            stream.cancel()


def _until_first_tokens(engine: Engine, streams: Sequence[Stream]) -> tuple[list[float], list[float]]:
    """Run steps until every stream has a token; return when each step ended, and when each stream had its token."""
    ends: list[float] = []
    firsts: dict[int, float] = {}
    while len(firsts) < len(streams):
        engine.step()
        ends.append(time.perf_counter())
        for index, stream in enumerate(streams):
            if index not in firsts and stream.is_ready:
                firsts[index] = ends[-1]
    return ends, [firsts[index] for index in range(len(streams))]


def _room(engine: Engine, work: Work) -> int:
    """Return the most new tokens of a sequence: none ends before the steps are over, as far as the context allows."""
    speculation = engine.config.speculation
    per_step = 1 if speculation.use == "none" else 1 + speculation.tokens
    # A sequence whose prompt is done decodes while the others prefill, so each gets room for that beside its steps.
    waiting = -(-work.rows * work.context // engine.limits.max_rows) + 1
    wanted = (work.positions - work.context + waiting) * per_step
    free = engine.limits.tokens // work.rows // 16 * 16  # positions that each sequence can have
    return max(1, min(wanted, min(engine.limits.context, free) - work.context))


def check(engine: Engine, work: Work) -> None:
    """Raise UsageError where ``engine`` is too small for ``work``."""
    limits = engine.limits
    running = min(limits.max_segments, limits.max_samples)
    if work.rows > running:
        remedy = f"give --set scheduler.max_running={work.rows}"
        raise UsageError(f"work {work}", f"the engine runs {running} sequences at a time", remedy)
    if work.positions > limits.context:
        why = f"it needs {work.positions} positions and the engine has {limits.context}"
        raise UsageError(f"work {work}", why, "ask for a shorter context, or give --set kv_cache.memory=SIZE")
    blocks = work.rows * -(-work.positions // 16)
    if blocks > limits.tokens // 16:
        why = f"it needs {blocks} cache blocks and the engine has {limits.tokens // 16}"
        raise UsageError(f"work {work}", why, "give --set kv_cache.memory=SIZE")
