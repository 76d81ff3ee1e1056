"""Conversations with given answers through one engine, timed while they decode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from infeng_bench.engine.replay import Replay
from infeng_bench.engine.running import MeasurementError, greedy
from infeng_core.api import Engine, Request

Ids = Sequence[tuple[list[int], list[int]]]
"""The turns of a conversation as ids: each its prompt and its answer."""


@dataclass
class Decoded:
    """What was decoded, without prompts and first tokens."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def add(self, other: Decoded) -> None:
        """Add another count."""
        self.tokens, self.steps, self.seconds = (
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.seconds + other.seconds,
        )
        self.drafted, self.accepted = self.drafted + other.drafted, self.accepted + other.accepted


def replayed(engine: Engine, conversations: Sequence[Ids], rows: int, tenant: str) -> Decoded:
    """Run conversations, ``rows`` at a time, turn by turn; raises MeasurementError if an answer is another."""
    total = Decoded()
    replay = Replay(engine)
    try:
        for begin in range(0, len(conversations), rows):
            together = conversations[begin : begin + rows]
            for number in range(max(map(len, together))):
                turns = [one[number] for one in together if number < len(one)]
                total.add(_turn(engine, replay, turns, tenant))
                replay.forget()
    finally:
        replay.restore()
    return total


def _turn(engine: Engine, replay: Replay, turns: Ids, tenant: str) -> Decoded:
    streams = []
    for prompt, answer in turns:
        replay.expect(prompt, answer)
        streams.append(engine.submit(Request(tuple(prompt), greedy(len(answer)), tenant=tenant)))
    while not all(stream.is_ready for stream in streams):
        engine.step()
    events = [stream.pending() for stream in streams]
    found = Decoded()
    begin = time.perf_counter()
    while not all(stream.finished for stream in streams):
        engine.step()
        found.steps += 1
    found.seconds = time.perf_counter() - begin
    for stream, early, (_, answer) in zip(streams, events, turns, strict=True):
        late = stream.pending()
        completion = [*early, *late][-1].completion
        if completion is None or list(completion.token_ids) != answer:
            raise MeasurementError("answers", "the engine did not give the given one", "use backend native")
        found.tokens += sum(len(event.token_ids) for event in late)
        found.drafted += completion.usage.drafted_tokens
        found.accepted += completion.usage.accepted_tokens
    return found
