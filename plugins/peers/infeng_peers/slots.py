"""Continuous batching for peers: the admission of requests to slots, and the choice of the slots of each step.

``serve.py`` imports this file in the peer's interpreter, so it imports only the standard library. Besides the members
that ``serve.py`` describes, an engine that serves requests has:

- ``drop_adapters()``, ``load_adapter(name, path, scale)``, which may return the bytes of A and B in memory.
- ``mixes``: whether one step may have requests of different adapters.
- ``release(slot)``: end the slot's sequence.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

RULES = ("rotate", "drain", "sort")
"""The turns of adapters in an engine that cannot mix them in a step. ``rotate``: one step of each adapter in flight, in
turn. ``drain``: steps of the oldest request's adapter until none of its requests is in flight, as in llama.cpp's
server. ``sort``: like drain, and waiting requests of the running adapter are admitted before older ones."""


class Flight:
    """The requests in flight, by slot."""

    def __init__(self, rule: str, mixes: bool, slots: int) -> None:
        if rule not in RULES:
            raise ValueError(f"{rule!r} is none of {', '.join(RULES)}")
        self.rule = rule
        self.mixes = mixes
        self.free = list(range(slots))[::-1]
        self.adapters: dict[int, str | None] = {}  # of each taken slot, in order of admission
        self.last: str | None = None

    def choose(self, waiting: Sequence[str | None]) -> int:
        """Return the index of the request to admit next. waiting: the adapters of waiting requests."""
        if self.rule == "sort" and not self.mixes:
            running = set(self.adapters.values()) or {self.last}
            return next((place for place, adapter in enumerate(waiting) if adapter in running), 0)
        return 0

    def admit(self, adapter: str | None) -> int:
        """Return the slot of a new request."""
        slot = self.free.pop()
        self.adapters[slot] = adapter
        return slot

    def release(self, slot: int) -> None:
        """Free a slot."""
        del self.adapters[slot]
        self.free.append(slot)

    def group(self) -> list[int]:
        """Return the slots of the next step."""
        if self.mixes:
            return list(self.adapters)
        running = list(dict.fromkeys(self.adapters.values()))
        if self.rule == "rotate":
            turn = (running.index(self.last) + 1) % len(running) if self.last in running else 0
            self.last = running[turn]
        elif self.last not in running:
            self.last = running[0]
        return [slot for slot, adapter in self.adapters.items() if adapter == self.last]


def serve(engine: Any, requests: Sequence[dict[str, Any]], places: int, rule: str) -> dict[str, Any]:
    """Answer ``requests``, at most ``places`` at a time, and return the answer that ``process.py`` reads.

    requests: ``{"at": seconds, "prompt": ids, "new": tokens, "adapter": name or None}`` in order of arrival.
    """
    flight = Flight(rule, engine.mixes, places)
    engine.open("serve", places, max(len(request["prompt"]) + request["new"] for request in requests) + 1)
    traces: list[dict[str, Any]] = [{"admitted": 0.0, "times": [], "ids": []} for _ in requests]
    waiting = list(range(len(requests)))
    running: dict[int, int] = {}  # slot -> request
    cpu, begin = time.process_time(), time.perf_counter()
    while waiting or running:
        now = time.perf_counter() - begin
        while flight.free and waiting and requests[waiting[0]]["at"] <= now:
            here = [requests[index]["adapter"] for index in waiting if requests[index]["at"] <= now]
            index = waiting.pop(flight.choose(here))
            slot = flight.admit(requests[index]["adapter"])
            traces[index]["admitted"] = now
            running[slot] = index
            engine.admit(slot, requests[index]["prompt"], requests[index]["adapter"])
        if not running:
            time.sleep(max(0.0, requests[waiting[0]]["at"] - (time.perf_counter() - begin)))
            continue
        produced = engine.advance(flight.group())
        now = time.perf_counter() - begin
        for slot, token in produced:
            index = running[slot]
            traces[index]["times"].append(now)
            traces[index]["ids"].append(token)
            if len(traces[index]["ids"]) == requests[index]["new"]:
                engine.release(slot)
                flight.release(slot)
                del running[slot]
    return {
        "requests": traces,
        "seconds": now,
        "tokens_per_s": sum(len(trace["ids"]) for trace in traces) / now,
        "cpu_seconds": time.process_time() - cpu,
        "peak_rss_bytes": peak_rss(),
    }


def peak_rss() -> int:
    """Return this process's peak resident memory in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024)
