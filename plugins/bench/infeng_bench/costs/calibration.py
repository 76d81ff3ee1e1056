"""Measure the times of an engine's steps and fit the cost model of a simulation to them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Several
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infeng_bench.costs.activity import Activity
from infeng_bench.costs.step_costs import Step, StepCosts, fit
from infeng_bench.engine.running import perform
from infeng_bench.engine.work import Work
from infeng_bench.models import adapters
from infeng_bench.models.model_shape import most_common
from infeng_bench.models.token_costs import costs
from infeng_bench.reports import machine
from infeng_core.api.engines import Batch, RunningRequest

if TYPE_CHECKING:
    from infeng_core.api import Engine

ROWS = (1, 2, 4, 8, 16, 32)
CHUNKS = (4, 8, 16, 32, 48, 64, 128, 256, 512)
CONTEXT = 8  # of rows that decode together; the cost of context is measured on one row with a long prompt
LONG = 768
STEPS = 4
ROUNDS = 5
SECONDS = 30.0
SMALL = 64  # works of at most so many rows are done even after the time limit
SEED = 2**30
ADAPTERS, RANK = 4, 16


class Watch:
    """Times each batch of an engine's scheduler, from ``next_batch`` to ``commit``."""

    def __init__(self, engine: Engine) -> None:
        """Made by ``watched``."""
        limits = engine.limits
        self.steps: list[tuple[Step, float]] = []
        self.activity = Activity(min(limits.max_segments, limits.max_samples), limits.kv_blocks)
        self._scheduler = engine.scheduler
        self._begin = self._origin = time.perf_counter()
        self._next_batch, self._commit = self._scheduler.next_batch, self._scheduler.commit

    def next_batch(self, *arguments: Any, **named: Any) -> Batch | None:
        """Start the clock and call the scheduler."""
        self._begin = time.perf_counter()
        return self._next_batch(*arguments, **named)

    def commit(
        self, batch: Batch, tokens: list[list[int]], finished: Collection[RunningRequest], *arguments: Any, **named: Any
    ) -> None:
        """Call the scheduler and record the batch and its time."""
        step = Step.of(batch)
        running, waiting = self._scheduler.running, self._scheduler.waiting
        blocks = self._scheduler.pool.total - self._scheduler.free_blocks
        self.activity.preemptions += sum(sequence.preemptions for sequence in finished)
        self._commit(batch, tokens, finished, *arguments, **named)
        seconds = time.perf_counter() - self._begin
        self.steps.append((step, seconds))
        self.activity.step(self._begin - self._origin, seconds, step.rows, running, waiting, blocks)


@contextlib.contextmanager
def watched(engine: Engine) -> Iterator[Watch]:
    """Time the steps of an engine inside a ``with`` block."""
    watch = Watch(engine)
    scheduler: Any = engine.scheduler
    scheduler.next_batch, scheduler.commit = watch.next_batch, watch.commit
    try:
        yield watch
    finally:
        del scheduler.next_batch, scheduler.commit  # uncovers the methods of the class


def works(engine: Engine) -> list[Work]:
    """Return the works that fit the engine: decoding rows, one decoding row of a long context, and prompts."""
    limits = engine.limits
    room = min(limits.context, limits.tokens)
    places = min(limits.max_segments, limits.max_samples, limits.tokens // 32)
    found = [Work("decode", rows, CONTEXT, STEPS) for rows in ROWS if rows <= places]
    if room > 64:
        found.append(Work("decode", 1, min(LONG, room - STEPS - 2), STEPS))
    return found + [Work("prefill", 1, rows) for rows in CHUNKS if rows <= limits.max_rows and rows < room]


def measure(engine: Engine, seconds: float = SECONDS, more: Several[tuple[Step, float]] = ()) -> StepCosts:
    """Return the costs of an idle engine, measured in about ``seconds``. more: steps measured before."""
    found, load = _with_adapters(engine)
    fitted = fit([*more, *steps(engine, seconds), *found], f"measured on {cpu()}", facts(engine))
    return replace(fitted, adapter_load=load)


def steps(engine: Engine, seconds: float = SECONDS) -> list[tuple[Step, float]]:
    """Repeat the works in turn for about ``seconds``; return each step with its time.

    Large works are skipped when the time is short: the cost per row of a step of many rows follows from smaller ones.
    """
    end = time.perf_counter() + seconds
    took: dict[Work, float] = {}
    with watched(engine) as watch:
        for number in range(ROUNDS):
            for index, work in enumerate(works(engine)):
                begin = time.perf_counter()
                if work.rows * work.context > SMALL and begin + took.get(work, 0.0) > end:
                    continue
                perform(engine, work, SEED + 100 * number + index)  # prompts share no prefix
                took[work] = time.perf_counter() - begin
    return watch.steps


def _with_adapters(engine: Engine) -> tuple[list[tuple[Step, float]], float]:
    """Return steps of rows with one adapter and with several, and the seconds to load one; [] if none may be loaded."""
    limits = engine.limits
    count = min(ADAPTERS, engine.config.adapters.most_resident, limits.max_segments, limits.kv_blocks // 2)
    names = [f"infeng-bench-{k}" for k in range(count)]
    if not names:
        return [], 0.0
    try:
        for k, name in enumerate(names):
            engine.adapters.load(name, adapters.peft_directory(engine.model.config, RANK, "all", k))
        with watched(engine) as watch:
            for number in range(2):
                for users in (names[:1], names):
                    perform(engine, Work("decode", count, CONTEXT, STEPS), SEED + number, users)
        known = [info for info in engine.adapters.infos() if info.name in names]
        loads = [info.load_seconds for info in known if info.load_seconds is not None]
        return watch.steps, statistics.median(loads)
    finally:
        for info in engine.adapters.infos():
            if info.name in names:
                engine.adapters.unload(info.name)


def cpu() -> str:
    """Return the processor's name."""
    return str(machine.machine()["cpu"])


def facts(engine: Engine) -> dict[str, Any]:
    """Return the model, the settings and the machine of a measurement."""
    shape = engine.model.config
    return {
        "model": shape.family,
        "hidden": shape.hidden,
        "layers": shape.layers,
        "macs_per_token": costs(engine.model, engine.config.kv_cache.dtype).macs_per_token,
        "format": most_common(engine.model.formats_used),
        "kv_dtype": engine.config.kv_cache.dtype,
        "threads": engine.cpu.place(engine.config.threads, engine.model.nbytes).workers,
        "cpu": cpu(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
