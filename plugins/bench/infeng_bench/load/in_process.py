"""Traffic on an engine in this process, whose own thread runs the steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from infeng_bench.engine.running import greedy
from infeng_bench.load.driver import Driver
from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.traffic import Arrival, Traffic
from infeng_bench.sim.simulator import reason
from infeng_core.api import InfengError, Request

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream


def drive(
    engine: Engine,
    traffic: Traffic,
    vocab: int,
    *,
    clients: float = math.inf,
    done: Callable[[], object] = lambda: None,
) -> Outcomes:
    """Serve all requests of ``traffic``, greedily and past end tokens, and return their outcomes.

    clients, done: as in Driver. A failed request is counted, and the others go on.
    """
    driver = _EngineDriver(engine, traffic, vocab, clients, done)
    engine.start(on_step=driver.collect)
    try:
        driver.run()
    finally:
        driver.cancel()
        engine.stop()
    return driver.outcomes


class _EngineDriver(Driver):
    """Submits requests on the calling thread, or after a step; collects tokens on the engine's thread."""

    def __init__(
        self, engine: Engine, traffic: Traffic, vocab: int, clients: float, done: Callable[[], object]
    ) -> None:
        super().__init__(traffic, clients, done)
        self._engine = engine
        self._vocab = vocab
        self._running: list[tuple[int, Stream]] = []

    def prepared(self, place: int, arrival: Arrival) -> list[int]:
        """Return the prompt."""
        return self.traffic.ids(place, self._vocab)

    def submit(self, place: int, arrival: Arrival, made: list[int]) -> None:
        """Submit a request to the engine."""
        request = Request(tuple(made), greedy(arrival.new), arrival.priority, arrival.tenant, arrival.adapter)
        begin = time.perf_counter()
        try:
            self._running.append((place, self._engine.submit(request)))
        except InfengError as error:
            self.outcomes.refusals.append(time.perf_counter() - begin)
            self.ended(reason(error))

    def cancel(self) -> None:
        """Cancel all running requests."""
        with self.lock:
            for _, stream in self._running:
                stream.cancel()

    def collect(self) -> None:
        """Collect the tokens of a step; called on the engine's thread."""
        now = self.now()
        with self.lock:
            for place, stream in self._running:
                self._take(place, stream, now)
            gone = [stream.finished for _, stream in self._running]
            if any(gone):
                self._running = [one for one, is_gone in zip(self._running, gone, strict=True) if not is_gone]
                self.fill()

    def _take(self, place: int, stream: Stream, now: float) -> None:
        found = self.outcomes
        try:
            events = stream.pending()
        except InfengError as error:
            self.ended(reason(error))
            return
        for event in events:
            if event.token_ids:
                if math.isnan(found.first[place]):
                    found.first[place] = now
                elif now > found.last[place]:
                    found.gaps.add(now - found.last[place])
                found.last[place] = now
                found.tokens[place] += len(event.token_ids)
            if event.completion is not None:
                found.cached[place] = event.completion.usage.cached_tokens
                found.begun[place] = found.arrived[place] + event.completion.timings.queued
                found.is_done[place] = True
                self.ended()
