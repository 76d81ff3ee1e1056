"""Teacher-forced logits of a text from an executable, a bounded number of rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.engines import AdapterRows, Batch, Executable, Limits

ROWS = 128
"""Rows of one step, whose logits are in memory: 64 MB with a vocabulary of 128k."""

BLOCK = 16
"""Positions of one block of the cache, fixed by the ABI."""

Hold = Callable[[Sequence[int]], AbstractContextManager[Any]]
"""The adapter of a text, as ``engine.adapters.held`` yields it for the text's tokens."""


def settings(rows: int = ROWS) -> dict[str, object]:
    """Return settings with which every row of a step can have logits and no cache outlives a text.

    Layers with a window keep all positions, since a text has one block table.
    """
    return {
        "scheduler.max_batch_tokens": rows,
        "scheduler.max_running": rows,
        "kv_cache.prefix": False,
        "kv_cache.windows": False,
        "speculation.use": "none",
    }


class Teacher:
    """Runs texts through an executable, whose cache nothing else may use meanwhile."""

    def __init__(self, executable: Executable, limits: Limits, hold: Hold | None = None) -> None:
        """Keep an executable and its limits. hold: the adapter of every text; None is the base model."""
        self._executable = executable
        self._hold = hold
        self._rows = min(limits.max_rows, limits.max_samples)
        self.context = min(limits.context, limits.kv_blocks * BLOCK)
        """Most tokens of one text."""

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (position, logits) for all of ``ids``, in portions; row i predicts the token after position + i.

        logits: (rows, vocab) float32, valid until the next portion. Raises KernelError if an op fails.
        """
        tokens = np.asarray(ids, np.int32)
        table = np.arange(-(-len(tokens) // BLOCK), dtype=np.int32)
        with self._hold(ids) if self._hold else contextlib.nullcontext() as adapter:
            for begin in range(0, len(tokens), self._rows):
                rows = min(self._rows, len(tokens) - begin)
                yield (
                    begin,
                    self._executable.run(
                        Batch(
                            segments=[],
                            tokens=tokens[begin : begin + rows].copy(),
                            positions=np.arange(begin, begin + rows, dtype=np.int32),
                            kv_segments=np.array([[0, rows, begin, 0]], np.int32),
                            block_tables=table,
                            sample_rows=np.arange(rows, dtype=np.int32),
                            adapters=_acting(adapter, begin, rows),
                        )
                    ),
                )


def _acting(adapter: Any, begin: int, rows: int) -> list[AdapterRows]:
    """Return the rows of a portion, positions begin, begin + 1, ..., on which an adapter acts."""
    if adapter is None:
        return []
    firsts = adapter.begins or (0,) * len(adapter.rows)
    return [
        AdapterRows(max(0, first - begin), rows, handle, weight)
        for (handle, weight), first in zip(adapter.rows, firsts, strict=True)
        if first < begin + rows
    ]
