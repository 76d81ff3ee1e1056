"""The number of steps until the KV blocks of a disconnected client are free, in-process and over HTTP.

A companion sequence decodes meanwhile, and each of its tokens counts one step. The engine's load, or the server's
/load, is polled until it shows that the blocks are free.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from typing import Any

from infeng_bench.engine.running import greedy
from infeng_bench.http.client import Client, Reply
from infeng_bench.http.overhead_figures import IN_PROCESS, SERVED
from infeng_bench.http.pace import SHORT, asked, until_begun
from infeng_bench.http.paired import PairedEngines, both
from infeng_bench.http.traffic import Figures
from infeng_bench.load import load_options
from infeng_bench.load.prompts import random_ids
from infeng_core.api import Engine, Stream

PHASES = ("decode", "prefill")
DECODED = 4  # tokens that a client receives before it disconnects in decode
ATTEMPTS = 4  # per round: a short prompt may be prefilled before the client disconnects
PAUSE = 0.0001  # seconds between two polls

_RUNNING = re.compile(rb'"running":(\d+)')


def measured(arguments: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Return the steps until blocks are free, by side, for clients that disconnect in decode and in prefill."""
    load = arguments.load
    rounds = int(load["rounds"])
    settings = {**load_options.AS_SERVED, "kv_cache__prefix": False}
    found: Figures = {IN_PROCESS: {}, SERVED: {}}
    with both(arguments, settings) as sides:
        most = min(int(load["prompt"]), sides.context - 2)
        places: dict[str, _InProcess | _OverHttp] = {
            IN_PROCESS: _InProcess(sides.engine, most, sides.vocab),
            SERVED: _OverHttp(sides, most),
        }
        for side, place in places.items():
            with place:
                for phase in PHASES:
                    steps: list[int] = []
                    for number in range(ATTEMPTS * rounds):
                        if len(steps) < rounds and (count := place.leave(phase, number)) is not None:
                            steps.append(count)
                    found[side] |= _figures(phase, steps)
        record = sides.session.record("serve-load", {}, seed=arguments.seed, load=str(load))
    return found, record


def _figures(phase: str, steps: list[int]) -> dict[str, Any]:
    return {
        f"{phase}_rounds": len(steps),
        f"median_{phase}_steps": statistics.median(steps) if steps else None,
        f"max_{phase}_steps": max(steps, default=None),
    }


class _InProcess:
    """The engine of this process, whose own thread runs the steps."""

    def __init__(self, engine: Engine, prompt: int, vocab: int) -> None:
        self._engine, self._prompt, self._vocab = engine, prompt, vocab
        self._steps = 0
        self._other: Stream | None = None

    def __enter__(self) -> _InProcess:
        self._engine.start(on_step=self._count)
        return self

    def __exit__(self, *of_error: object) -> None:
        if self._other is not None:
            self._other.cancel()
        self._engine.stop()

    def leave(self, phase: str, number: int) -> int | None:
        """Cancel a request and return the steps until its blocks were free; None if it ended before."""
        other = self._companion()
        one = self._engine.submit(self._ids(phase, number), greedy(1 << 20 if phase == "decode" else 1))
        had = 0
        while not (one.finished or other.finished):
            had += sum(len(event.token_ids) for event in one.pending())
            if had >= DECODED if phase == "decode" else had or self._engine.load().running > 1:
                break
            time.sleep(PAUSE)
        is_late = one.finished or other.finished or (phase == "prefill" and had > 0)
        begin = self._steps
        one.cancel()
        while self._engine.load().running > 1:
            time.sleep(PAUSE)
        return None if is_late or other.finished else self._steps - begin

    def _count(self) -> None:
        self._steps += 1

    def _ids(self, phase: str, number: int) -> list[int]:
        return random_ids(SHORT if phase == "decode" else self._prompt, 0, 1 + number, self._vocab)

    def _companion(self) -> Stream:
        """Start the companion sequence and return it once it decodes."""
        if self._other is not None:
            self._other.cancel()
        while self._engine.load().running:
            time.sleep(PAUSE)
        self._other = self._engine.submit(random_ids(SHORT, 0, 0, self._vocab), greedy(1 << 20))
        while not self._other.is_ready:
            time.sleep(PAUSE)
        return self._other


class _OverHttp:
    """The server, from one client."""

    def __init__(self, sides: PairedEngines, prompt: int) -> None:
        self._sides, self._prompt = sides, prompt
        self._load = sides.server.address.look("/load")
        self._other: Reply | None = None

    def __enter__(self) -> _OverHttp:
        self._entered = self._sides.client()
        self._client: Client = self._entered.__enter__()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._entered.__exit__(None, None, None)

    def leave(self, phase: str, number: int) -> int | None:
        """Disconnect in the middle of an answer; returns what ``_InProcess.leave`` returns."""
        other, client, sides = self._companion(), self._client, self._sides
        length, new = (SHORT, sides.context - SHORT) if phase == "decode" else (self._prompt, 1)
        one = client.ask(asked(sides, random_ids(length, 0, 1 + number, sides.vocab), new))
        if phase == "decode":
            client.until(lambda: one.frames >= DECODED or one.is_over or other.is_over)
        else:
            while self._running() < 2 and not one.is_over:
                pass
        client.pump(0)
        is_late = one.is_over or other.is_over or (phase == "prefill" and one.frames > 0)
        begin = other.frames
        client.drop(one)
        while self._running() > 1:
            pass
        return None if is_late or other.is_over else other.frames - begin

    def _running(self) -> int:
        found = _RUNNING.search(self._client.whole(self._load).tail)
        return int(found[1]) if found else 0

    def _companion(self) -> Reply:
        """Start the companion sequence and return it once it decodes."""
        if self._other is not None:
            self._client.drop(self._other)
        while self._running():
            pass
        sides = self._sides
        self._other = self._client.ask(asked(sides, random_ids(SHORT, 0, 0, sides.vocab), sides.context - SHORT))
        until_begun(self._client, [self._other])
        return self._other
