"""The loop that submits requests at their arrival times or, in a closed loop, as others end."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from infeng_bench.load.outcomes import Outcomes
from infeng_bench.load.traffic import Arrival, Traffic


class Driver(ABC):
    """Submits traffic and collects its outcomes. A subclass submits one request and calls ``ended`` after it."""

    def __init__(self, traffic: Traffic, clients: float, done: Callable[[], object]) -> None:
        """Prepare the run.

        clients: most requests in flight of a closed loop; infinite: an open loop, requests come at their times.
        done: called after each request.
        """
        self.outcomes = Outcomes.of(traffic)
        self.traffic = traffic
        self.lock = threading.RLock()
        """Guards the outcomes and counters: requests may end on another thread than the one that submitted them."""
        self._clients = clients
        self._done = done
        self._coming = deque(enumerate(traffic))
        self._in_flight = 0
        self._left = len(traffic)
        self._is_over = threading.Event()
        self._begin = time.perf_counter()

    @abstractmethod
    def prepared(self, place: int, arrival: Arrival) -> Any:
        """Return the request's prompt or body, made before its time so that this cost is not measured."""

    @abstractmethod
    def submit(self, place: int, arrival: Arrival, made: Any) -> None:
        """Submit a request. made: the result of ``prepared``."""

    def run(self) -> None:
        """Submit all requests of an open loop, or the first of a closed loop; return after the last answer."""
        self._begin = time.perf_counter()
        self.fill()
        while math.isinf(self._clients) and self._coming:
            place, arrival = self._coming[0]
            made = self.prepared(place, arrival)
            time.sleep(max(0.0, arrival.at - self.now()))
            with self.lock:
                self._coming.popleft()
                self._hand_in(place, arrival, made, arrival.at)
        self._is_over.wait()

    def fill(self) -> None:
        """Submit requests of a closed loop up to ``clients`` in flight."""
        with self.lock:
            while math.isfinite(self._clients) and self._coming and self._in_flight < self._clients:
                place, arrival = self._coming.popleft()
                self._hand_in(place, arrival, self.prepared(place, arrival), self.now())

    def ended(self, refused: str | None = None) -> None:
        """Count the end of a request. refused: the reason if it was not answered."""
        with self.lock:
            if refused is not None:
                self.outcomes.refuse(refused)
            self._in_flight -= 1
            self._left -= 1
            self._done()
            if self._left == 0:
                self._is_over.set()

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._begin

    def _hand_in(self, place: int, arrival: Arrival, made: Any, moment: float) -> None:
        self.outcomes.arrived[place] = moment
        self._in_flight += 1
        self.submit(place, arrival, made)
