"""Run a work on an engine and time it; prefill and decoding are timed separately."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from infeng_bench.engine.work import Work
from infeng_core.api import InfengError, SamplingParams, UsageError

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream


@dataclass(frozen=True)
class Timing:
    """The times of one work."""

    tokens: int  # ``Work.tokens``, or more if speculated tokens were accepted
    seconds: float  # wall-clock seconds of the timed part
    prefill_seconds: float  # until every sequence had its first token
    steps: Sequence[float]  # seconds of each step of the timed part
    first_tokens: Sequence[float]  # seconds until the first token, by sequence

    @property
    def tokens_per_s(self) -> float:
        """Timed tokens per second."""
        return self.tokens / self.seconds


class MeasurementError(InfengError):
    """The engine did not do the requested work, so there is no figure."""


def greedy(tokens: int) -> SamplingParams:
    """Return greedy sampling of exactly ``tokens`` tokens, end-of-sequence tokens included."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def perform(engine: Engine, work: Work, seed: int, adapters: Sequence[str] = ()) -> Timing:
    """Do ``work`` on random prompts of ``seed`` and return its times; the engine must be idle.

    Steps have no time bound here, whatever ``scheduler.step_ms`` says, so that all prompts are prefilled before the
    first sequence ends.

    adapters: the sequences use these in turn. Raises UsageError if the engine is too small for the work, and
    MeasurementError if a row did not decode in every timed step.
    """
    check(engine, work)
    params = greedy(_room(engine, work))
    prompts = work.prompts(seed, engine.model.config.vocab)
    streams: list[Stream] = []
    with _steps_of_any_length(engine):
        for name in dict.fromkeys(adapters):  # loaded first: rows would decode while others wait for an adapter
            engine.submit([1], greedy(1), adapter=name).result()
        try:
            begin = time.perf_counter()
            users = [adapters[row % len(adapters)] if adapters else None for row in range(work.rows)]
            for prompt, user in zip(prompts, users, strict=True):
                streams.append(engine.submit(prompt, params, adapter=user))
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
            tokens = collected(engine, streams, work.steps, f"work {work}")
            steps = [end - start for start, end in pairwise(ends)]
            return Timing(tokens, ends[-1] - ends[0], prefill, steps, first_tokens)
        finally:
            for stream in streams:
                stream.cancel()


def collected(engine: Engine, streams: Sequence[Stream], steps: int, what: str) -> int:
    """Return the number of tokens that ``steps`` steps of ``engine`` gave the rows ``streams``.

    what: the measurement, for the error. Raises MeasurementError unless every row decoded in every step: one token per
    step (at least one with speculation), and no row ended before the last step.
    """
    guesses = engine.config.speculation.use != "none"
    counts = [sum(len(event.token_ids) for event in stream.pending()) for stream in streams]
    for row, (count, stream) in enumerate(zip(counts, streams, strict=True)):
        if count < steps or (count > steps and not guesses) or (guesses and stream.finished):
            why = f"row {row} of {len(streams)} has {count} tokens of {steps} steps: it did not decode in every step"
            raise MeasurementError(what, why, "give the cache more room, or drop settings that end or delay rows")
    return sum(counts)


@contextlib.contextmanager
def _steps_of_any_length(engine: Engine) -> Iterator[None]:
    """Lift the bound on the time of steps inside a ``with`` block."""
    scheduler = engine.scheduler
    bound, scheduler.step_seconds = scheduler.step_seconds, None
    try:
        yield
    finally:
        scheduler.step_seconds = bound


def _until_first_tokens(engine: Engine, streams: Sequence[Stream]) -> tuple[list[float], list[float]]:
    """Run steps until every stream has a token; return the end of each step and the first token time by stream."""
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
    """Return ``max_tokens`` of a sequence: as far as the context allows, none ends before the timed steps do."""
    if work.kind == "prefill":
        return 1  # no row decodes beside the timed prompts
    wanted = (work.positions - work.context + waiting(engine, work)) * most_of_a_step(engine)
    free = engine.limits.tokens // work.rows // 16 * 16  # positions that each sequence can have
    return max(1, min(wanted, min(engine.limits.context, free) - work.context))


def most_of_a_step(engine: Engine) -> int:
    """Return how many tokens a step may give a sequence: one, plus speculated ones."""
    return 1 + engine.config.speculation.most


def waiting(engine: Engine, work: Work) -> int:
    """Return the most steps that a sequence may decode while the other prompts are prefilled.

    A step has rows for prompts beside one row of each sequence that decodes already.
    """
    if work.kind == "prefill" or work.rows == 1:
        return 0
    return -(-work.rows * work.context // max(engine.limits.max_rows - work.rows, 1)) + 1


def check(engine: Engine, work: Work) -> None:
    """Raise UsageError if ``engine`` is too small for ``work``."""
    limits = engine.limits
    running = min(limits.max_segments, limits.max_samples)
    if work.rows > running:
        remedy = f"give --set scheduler.max_running={work.rows}"
        raise UsageError(f"work {work}", f"the engine runs {running} sequences at a time", remedy)
    positions = work.positions + waiting(engine, work)
    if positions > limits.context:
        why = f"it needs {positions} positions and the engine has {limits.context}"
        raise UsageError(f"work {work}", why, "ask for a shorter context, or give --set kv_cache.memory=SIZE")
    blocks = work.rows * -(-positions // 16)
    if blocks > limits.tokens // 16:
        why = f"it needs {blocks} cache blocks and the engine has {limits.tokens // 16}"
        raise UsageError(f"work {work}", why, "give --set kv_cache.memory=SIZE")
