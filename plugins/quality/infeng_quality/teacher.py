"""Teacher-forced logits of a text from an executable, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from infeng_core.api.engines import Batch, Executable, Limits

ROWS = 128
"""Rows of one step, whose logits are in memory: 64 MB with a vocabulary of 128k."""

BLOCK = 16
"""Positions of one block of the cache, fixed by the ABI."""


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

    def __init__(self, executable: Executable, limits: Limits) -> None:
        """Keep an executable and its limits."""
        self._executable = executable
        self._rows = min(limits.max_rows, limits.max_samples)
        self.context = min(limits.context, limits.kv_blocks * BLOCK)
        """Most tokens of one text."""

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (position, logits) for all of ``ids``, in portions; row i predicts the token after position + i.

        logits: (rows, vocab) float32, valid until the next portion. Raises KernelError if an op fails.
        """
        tokens = np.asarray(ids, np.int32)
        table = np.arange(-(-len(tokens) // BLOCK), dtype=np.int32)
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
                    )
                ),
            )
