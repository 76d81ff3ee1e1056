"""Two sides that do the same work in turn, A B B A A B, and the ratio of each pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from infeng_bench.engine.alternating import AlternatingGroups
from infeng_bench.engine.running import check, collected, greedy, most_of_a_step, waiting
from infeng_bench.engine.work import Work
from infeng_core.api import Request

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream


@dataclass
class Side:
    """An engine and the adapters that its requests use."""

    engine: Engine
    adapters: Sequence[str] = ()  # row i uses ``adapters[i % len(adapters)]``; empty: the base model
    _streams: list[Stream] = field(default_factory=list)

    def start(self, prompts: Sequence[Sequence[int]], new: int) -> None:
        """Submit a request of ``new`` tokens for each prompt."""
        params = greedy(new)
        for row, prompt in enumerate(prompts):
            adapter = self.adapters[row % len(self.adapters)] if self.adapters else None
            self._streams.append(self.engine.submit(Request(tuple(prompt), params, adapter=adapter)))

    def step(self) -> float:
        """Run one step of these requests and return its seconds."""
        scheduler = self.engine.scheduler.policy
        if isinstance(scheduler, AlternatingGroups):
            scheduler.turn = bool(self.adapters)
        begin = time.perf_counter()
        self.engine.step()
        return time.perf_counter() - begin

    def until_first_tokens(self) -> None:
        """Run steps until every request has a token."""
        while not self.has_begun:
            self.step()
        for stream in self._streams:
            stream.pending()

    @property
    def has_begun(self) -> bool:
        """Whether every request has a token."""
        return all(stream.is_ready for stream in self._streams)

    def collect(self, steps: int, what: str) -> int:
        """Return the number of tokens of ``steps`` steps; raises MeasurementError like ``collected``."""
        return collected(self.engine, self._streams, steps, what)

    def stop(self) -> None:
        """Cancel all requests."""
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()


@dataclass(frozen=True)
class Pair:
    """The same work done by both sides: seconds and timed tokens."""

    seconds: tuple[float, float]
    tokens: tuple[int, int]

    @property
    def ratio(self) -> float:
        """Seconds per token of the second side over the first."""
        first, second = (seconds / tokens for seconds, tokens in zip(self.seconds, self.tokens, strict=True))
        return second / first


def pairs(
    sides: tuple[Side, Side], work: Work, count: int, seed: int, done: Callable[[], object] = lambda: None
) -> list[Pair]:
    """Measure ``work`` ``count`` times with each side in turn; one more pair before them warms up and is dropped.

    ``decode``: both sides prefill the prompts, then take turns of ``work.steps`` steps, so their contexts grow alike.
    ``prefill``: each pair has new prompts, of seed, seed + 1, ...; sides take turns step by step.
    The side that begins alternates.
    Raises UsageError if an engine is too small, MeasurementError if a row did not decode in every step.
    """
    measure = _decode if work.kind == "decode" else _prefill
    shared = 2 if sides[0].engine is sides[1].engine else 1
    steps = (count + 1) * work.steps * most_of_a_step(sides[0].engine)
    grown = replace(work, rows=shared * work.rows, steps=steps)
    for side in sides:
        check(side.engine, grown)
    try:
        return measure(sides, work, count, seed, done)[1:]
    finally:
        for side in sides:
            side.stop()


def _decode(sides: tuple[Side, Side], work: Work, count: int, seed: int, done: Callable[[], object]) -> list[Pair]:
    prompts = work.prompts(seed, sides[0].engine.model.config.vocab)
    for side in sides:
        side.start(prompts, _new_tokens(work, count, side.engine))
        side.until_first_tokens()
    found = []
    for number in range(count + 1):
        seconds, tokens = [0.0, 0.0], [0, 0]
        for index in _order(number):
            seconds[index] = sum(sides[index].step() for _ in range(work.steps))
            tokens[index] = sides[index].collect(work.steps, f"work {work}")
        found.append(Pair((seconds[0], seconds[1]), (tokens[0], tokens[1])))
        done()
    return found


def _prefill(sides: tuple[Side, Side], work: Work, count: int, seed: int, done: Callable[[], object]) -> list[Pair]:
    found = []
    for number in range(count + 1):
        prompts = work.prompts(seed + number, sides[0].engine.model.config.vocab)
        for side in sides:
            side.start(prompts, 1)
        seconds = [0.0, 0.0]
        while not all(side.has_begun for side in sides):
            for index in _order(number):
                if not sides[index].has_begun:
                    seconds[index] += sides[index].step()
        for side in sides:
            side.stop()
        found.append(Pair((seconds[0], seconds[1]), (work.tokens, work.tokens)))
        done()
    return found


def _order(number: int) -> tuple[int, int]:
    return (0, 1) if number % 2 == 0 else (1, 0)


def _new_tokens(work: Work, count: int, engine: Engine) -> int:
    """Return ``max_tokens`` of a sequence; sequences decode already while the other prompts are prefilled."""
    if work.kind == "prefill":
        return 1
    return ((count + 1) * work.steps + waiting(engine, work) + 1) * most_of_a_step(engine)
