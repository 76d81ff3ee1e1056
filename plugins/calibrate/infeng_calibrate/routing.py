"""The inputs of a layer's experts: each expert reads the rows that the router sends to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def chosen(logits: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """Return the experts of each row, (rows, top_k), as the op ``route`` of docs/numerics.md."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :top_k]


@dataclass(frozen=True)
class Routed:
    """The inputs of a linear op of experts.

    ``inputs`` are (tokens, k) of each text, whose rows are copied to experts; if ``by_experts``, earlier ops of the
    experts computed them, and they are (tokens * top_k, k) in the order of experts. ``chosen``: (tokens, top_k) of each
    text.
    """

    inputs: Sequence[NDArray[np.float32]]
    chosen: Sequence[NDArray[np.int64]]
    experts: int
    by_experts: bool

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows of each expert, (experts,)."""
        return np.asarray(np.sum([self._counts(one) for one in self.chosen], axis=0))

    def of(self, expert: int) -> list[NDArray[np.float32]]:
        """Return the inputs of one expert for each text, (its rows, k)."""
        return [self._of(expert, *both) for both in zip(self.inputs, self.chosen, strict=True)]

    def _of(self, expert: int, rows: NDArray[np.float32], chosen: NDArray[np.int64]) -> NDArray[np.float32]:
        if not self.by_experts:
            is_sent = np.any(chosen == expert, axis=1)
            return np.compress(is_sent, rows, axis=0)
        ends = np.cumsum(self._counts(chosen))
        begin, end = (int(ends[expert - 1]) if expert else 0), int(ends[expert])
        return rows[begin:end]

    def _counts(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(chosen.reshape(-1), minlength=self.experts)
