"""Runs a work on an engine and takes the time; decoding is timed apart from the prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from infeng_bench.works import Work
from infeng_core.errors import UsageError
from infeng_core.request import SamplingParams

if TYPE_CHECKING:
    from infeng_core.engine import Engine
    from infeng_core.stream import Stream


@dataclass(frozen=True)
class Timing:
    """What one work took."""

    tokens: int
    """Tokens that count, as ``Work.tokens`` says; more where a step gave more than one a row."""
    seconds: float
    """Wall-clock seconds of the part that counts."""
    prefill_seconds: float
    """Until every sequence had its first token."""
    steps: Sequence[float]
    """Seconds of each of the engine's steps of the part that counts."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens that count per second."""
        return self.tokens / self.seconds


def perform(engine: Engine, work: Work, seed: int) -> Timing:
    """Do ``work`` on random prompts of ``seed``; the engine has nothing else to do and keeps nothing of it.

    Raises UsageError where the engine is too small for it.
    """
    _check(engine, work)
    # A sequence whose prompt is done decodes while the others prefill, so each gets room for that beside its steps.
    waiting = -(-work.rows * work.context // engine.limits.max_rows) + 1
    most = min(work.positions + waiting, engine.limits.context) - work.context
    params = SamplingParams(temperature=0.0, max_tokens=max(most, 1), ignore_eos=True)
    prompts = work.prompts(seed, engine.model.config.vocab)
    streams: list[Stream] = []
    try:
        begin = time.perf_counter()
        streams += [engine.submit(prompt, params) for prompt in prompts]
        prefill_steps = _until_first_tokens(engine, streams)
        first = time.perf_counter()
        if work.kind == "prefill":
            return Timing(work.tokens, first - begin, first - begin, prefill_steps)
        for stream in streams:
            stream.pending()
        ends = [time.perf_counter()]
        for _ in range(work.steps):
            engine.step()
            ends.append(time.perf_counter())
        tokens = sum(len(event.token_ids) for stream in streams for event in stream.pending())
        steps = [end - start for start, end in pairwise(ends)]
        return Timing(tokens, ends[-1] - ends[0], first - begin, steps)
    finally:
        for stream in streams:
            stream.cancel()


def _until_first_tokens(engine: Engine, streams: Sequence[Stream]) -> list[float]:
    steps = []
    while not all(stream.is_ready for stream in streams):
        start = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - start)
    return steps


def _check(engine: Engine, work: Work) -> None:
    limits = engine.limits
    running = min(limits.max_segments, limits.max_samples)
    if work.rows > running:
        remedy = f"give --set scheduler.max_running={work.rows}"
        raise UsageError(f"work {work}", f"the engine runs {running} sequences at a time", remedy)
    if work.positions > limits.context:
        why = f"it needs {work.positions} positions and the engine has {limits.context}"
        raise UsageError(f"work {work}", why, "ask for a shorter context, or give --set kv_cache.memory=SIZE")
    blocks = work.rows * -(-work.positions // 16)
    if blocks > limits.kv_blocks:
        why = f"it needs {blocks} cache blocks and the engine has {limits.kv_blocks}"
        raise UsageError(f"work {work}", why, "give --set kv_cache.memory=SIZE")
