"""The number of steps until the KV blocks of a client that has left are free.

A companion sequence decodes meanwhile, and each of its tokens counts one step. The place is asked how many requests run
until it says that the blocks are free.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from infeng_bench.engine.pace import SHORT
from infeng_bench.load.place import Place
from infeng_bench.load.prompts import random_ids
from infeng_bench.load.requests import Job, Reply

PHASES = ("decode", "prefill")
DECODED = 4  # tokens that a client receives before it leaves in decode
ATTEMPTS = 4  # per round: a short prompt may be prefilled before the client leaves


def measured(place: Place, prompt: int, rounds: int) -> dict[str, Any]:
    """Return the figures of clients that leave in decode, and in the prefill of ``prompt`` tokens."""
    found: dict[str, Any] = {}
    for phase in PHASES:
        steps: list[int] = []
        for number in range(ATTEMPTS * rounds):
            if len(steps) < rounds and (count := _left(place, phase, number, prompt)) is not None:
                steps.append(count)
        found |= {
            f"{phase}_rounds": len(steps),
            f"median_{phase}_steps": statistics.median(steps) if steps else None,
            f"max_{phase}_steps": max(steps, default=None),
        }
    return found


def _left(place: Place, phase: str, number: int, prompt: int) -> int | None:
    """Leave in the middle of an answer and return the steps until its blocks were free; None if it ended before."""
    other = _companion(place)
    decodes = phase == "decode"
    length, new = (SHORT, place.context - SHORT) if decodes else (min(prompt, place.context - 2), 1)
    one = place.ask(Job(0.0, random_ids(length, 0, 1 + number, place.vocab), new))
    if decodes:
        place.until(lambda: one.count >= DECODED or one.is_over or other.is_over)
    else:
        _await(place, lambda running: running > 1 or one.is_over)
    place.settle()
    is_late = one.is_over or other.is_over or (not decodes and one.count > 0)
    begin = other.count
    place.drop(one)
    _await(place, lambda running: running <= 1)
    gone = other.is_over
    steps = other.count - begin
    place.drop(other)
    return None if is_late or gone else steps


def _await(place: Place, is_so: Callable[[int], bool]) -> None:
    """Let requests be answered until the number of running ones is as wanted."""
    while not is_so(place.running()):
        place.pump(0)


def _companion(place: Place) -> Reply:
    """Return a sequence that decodes beside no other."""
    _await(place, lambda running: not running)
    other = place.ask(Job(0.0, random_ids(SHORT, 0, 0, place.vocab), place.context - SHORT))
    place.until(lambda: other.count > 0 or other.is_over)
    place.check([other])
    return other
