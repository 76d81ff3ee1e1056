"""Hands requests in at their times or, in a closed loop, where others have gone; keeps what became of them."""

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
    """Puts traffic on what serves it. A subclass hands one request in, and tells of its end."""

    def __init__(self, traffic: Traffic, clients: float, done: Callable[[], object]) -> None:
        """Hand nothing in yet.

        clients: requests in flight at most, the next one comes when one has gone; infinite: they come at their times.
        done: called after each request.
        """
        self.outcomes = Outcomes.of(traffic)
        self.traffic = traffic
        self.lock = threading.RLock()
        """Guards the outcomes and the requests in flight, which may end on other threads than they came from."""
        self._clients = clients
        self._done = done
        self._coming = deque(enumerate(traffic))
        self._in_flight = 0
        self._left = len(traffic)
        self._is_over = threading.Event()
        self._begin = time.perf_counter()

    @abstractmethod
    def prepared(self, place: int, arrival: Arrival) -> Any:
        """Return what a request needs that takes time to make, which is not to be part of its own."""

    @abstractmethod
    def submit(self, place: int, arrival: Arrival, made: Any) -> None:
        """Hand a request in, with what ``prepared`` made for it."""

    def run(self) -> None:
        """Hand in all requests on this thread, in a closed loop the first of them; return after the last answer."""
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
        """In a closed loop: hand in requests while there are places."""
        with self.lock:
            while math.isfinite(self._clients) and self._coming and self._in_flight < self._clients:
                place, arrival = self._coming.popleft()
                self._hand_in(place, arrival, self.prepared(place, arrival), self.now())

    def ended(self, refused: str | None = None) -> None:
        """Count a request that is answered, or that is not for the reason ``refused``."""
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
