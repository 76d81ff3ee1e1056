"""Traffic on a real engine in this process: its own thread runs the steps, requests come from outside."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from infeng_bench.outcomes import Outcomes
from infeng_bench.simulator import reason
from infeng_bench.traffic import Arrival, Traffic
from infeng_core.api import InfengError, Request, SamplingParams

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
    """Serve all requests of ``traffic``, greedily and past end tokens, and return what became of them.

    clients: requests in flight at most, the next one comes when one has gone; infinite: they come at their times.
    done: called after each request. What one request fails with is counted, and the others go on.
    """
    driver = _Driver(engine, traffic, vocab, clients, done)
    engine.start(on_step=driver.collect)
    try:
        driver.run()
    finally:
        driver.end()
        engine.stop()
    return driver.outcomes


class _Driver:
    """Hands requests in on the calling thread, or after a step; collects tokens on the engine's own."""

    def __init__(
        self, engine: Engine, traffic: Traffic, vocab: int, clients: float, done: Callable[[], object]
    ) -> None:
        self.outcomes = Outcomes.of(traffic)
        self._engine = engine
        self._traffic = traffic
        self._vocab = vocab
        self._clients = clients
        self._done = done
        self._lock = threading.Lock()  # of what follows, which both threads change
        self._coming = deque(enumerate(traffic))
        self._running: list[tuple[int, Stream]] = []
        self._left = len(traffic)
        self._is_over = threading.Event()
        self._begin = time.perf_counter()

    def run(self) -> None:
        """Hand in every request when its time has come, and wait for the last answer."""
        self._begin = time.perf_counter()
        if math.isfinite(self._clients):
            with self._lock:
                self._fill()
        while math.isinf(self._clients) and self._coming:
            place, arrival = self._coming[0]
            prompt = self._traffic.ids(place, self._vocab)  # before its time, which it would take some of
            time.sleep(max(0.0, arrival.at - self._now()))
            with self._lock:
                self._coming.popleft()
                self._submit(place, arrival, prompt, arrival.at)
        self._is_over.wait()

    def end(self) -> None:
        """Cancel what still runs."""
        with self._lock:
            for _, stream in self._running:
                stream.cancel()

    def collect(self) -> None:
        """Take the tokens of a step; called on the engine's thread."""
        now = self._now()
        with self._lock:
            for place, stream in self._running:
                self._take(place, stream, now)
            gone = [stream.finished for _, stream in self._running]
            if any(gone):
                self._running = [one for one, is_gone in zip(self._running, gone, strict=True) if not is_gone]
                if math.isfinite(self._clients):
                    self._fill()

    def _fill(self) -> None:
        """In a closed loop: hand in requests while there are places."""
        while self._coming and len(self._running) < self._clients:
            place, arrival = self._coming.popleft()
            self._submit(place, arrival, self._traffic.ids(place, self._vocab), self._now())

    def _submit(self, place: int, arrival: Arrival, prompt: list[int], moment: float) -> None:
        self.outcomes.arrived[place] = moment
        params = SamplingParams(temperature=0.0, max_tokens=arrival.new, ignore_eos=True)
        request = Request(tuple(prompt), params, arrival.priority, arrival.tenant, arrival.adapter)
        try:
            self._running.append((place, self._engine.submit(request)))
        except InfengError as error:
            self._refuse(error)

    def _take(self, place: int, stream: Stream, now: float) -> None:
        found = self.outcomes
        try:
            events = stream.pending()
        except InfengError as error:
            self._refuse(error)
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
                self._ended()

    def _refuse(self, error: InfengError) -> None:
        self.outcomes.refuse(reason(error))
        self._ended()

    def _ended(self) -> None:
        self._left -= 1
        self._done()
        if self._left == 0:
            self._is_over.set()

    def _now(self) -> float:
        return time.perf_counter() - self._begin
