"""Requests with adapters, a few at a time: an engine answers the next one as soon as an earlier one has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infeng_bench.engine.running import greedy
from infeng_core.api import Request

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream


@dataclass(frozen=True)
class Asked:
    """One request: the name of its adapter, and its prompt (n,)."""

    adapter: str
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Answered:
    """The times of one request, in seconds."""

    first_token: float  # from its submission (TTFT)
    load: float | None  # of its adapter, where this request was the first that a load was for; None: it was in memory


def answered(engine: Engine, asked: Sequence[Asked], clients: int, tokens: int) -> list[Answered]:
    """Answer requests in their order, ``clients`` of them at a time, with ``tokens`` tokens each."""
    waiting = deque(enumerate(asked))
    running: dict[int, Stream] = {}
    found: dict[int, Answered] = {}
    loads = {one.adapter: engine.adapters[one.adapter].loads for one in asked}
    while waiting or running:
        while waiting and len(running) < clients:
            number, one = waiting.popleft()
            running[number] = engine.submit(Request(one.prompt, greedy(tokens), adapter=one.adapter))
        engine.step()
        for number in [number for number, stream in running.items() if stream.finished]:
            timings, name = running.pop(number).result().timings, asked[number].adapter
            info = engine.adapters[name]
            load = info.load_seconds if info.loads > loads[name] else None
            loads[name] = info.loads
            found[number] = Answered(timings.first_token, load)
    return [found[number] for number in range(len(asked))]
