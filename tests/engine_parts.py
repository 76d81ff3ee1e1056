"""Parts that tests of the engine share."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from infeng_core.backends.interface import Executable
from infeng_core.batch import Batch
from infeng_core.engine import Engine

MakeEngine = Callable[..., Engine]
"""``make(model=tiny, section__key=value, ...)``."""


class Recorder:
    """An executable that keeps the bytes of every sampled row's logits, by the id of the sequence."""

    def __init__(self, engine: Engine) -> None:
        """Listen to ``engine``."""
        self._inner = engine.executable
        self.logits: dict[int, list[bytes]] = defaultdict(list)
        self.rows: list[int] = []  # of every step
        engine.executable = self

    def __getattr__(self, name: str) -> Any:
        """Be the executable in every other respect."""
        return getattr(self._inner, name)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a step and listen."""
        logits = self._inner.run(batch)
        self.rows.append(len(batch.tokens))
        sampled = [segment.sequence.id for segment in batch.segments for _ in range(segment.sampled)]
        for id_, row in zip(sampled, logits, strict=True):
            self.logits[id_].append(row.tobytes())
        return logits


def greedy(executable: Executable, known: list[int], computed: int, table: list[int], count: int) -> list[int]:
    """Return ``count`` tokens after the ``known`` ones, of which ``computed`` are in the blocks of ``table``."""
    tokens = list(known)
    for _ in range(count):
        rows = len(tokens) - computed
        batch = Batch(
            segments=[],
            tokens=np.array(tokens[computed:], np.int32),
            positions=np.arange(computed, len(tokens), dtype=np.int32),
            kv_segments=np.array([[0, rows, computed, 0]], np.int32),
            block_tables=np.array(table, np.int32),
            sample_rows=np.array([rows - 1], np.int32),
        )
        computed = len(tokens)
        tokens.append(int(executable.run(batch)[0].argmax()))
    return tokens[len(known) :]


def preempting(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Send the request that started last back to the queue at every third step."""
    scheduler, steps = engine.scheduler, itertools.count(1)
    inner = scheduler.next_batch

    def next_batch(now: float) -> Any:
        if next(steps) % 3 == 0 and scheduler.running > 1:
            scheduler.preempt(list(scheduler._running)[-1], now)
        return inner(now)

    monkeypatch.setattr(scheduler, "next_batch", next_batch)
    return scheduler
