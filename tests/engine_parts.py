"""Parts that tests of the engine share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.engine import Engine
from infeng_core.step import Batch

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
