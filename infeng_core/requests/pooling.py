"""Pooling of the hidden states of a prompt's tokens to one vector."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import EndedError, RequestError, unknown_key_remedy
from infeng_core.requests.checks import shown

Pooling = Literal["mean", "last"]


class Pooled:
    """Takes the hidden states of one prompt as steps deliver them, in any chunks, and some of them twice.

    Rows are added one after the other in double, so that the sum does not depend on the chunks. The state changes in
    one operation, so an exception between two lines leaves it whole.
    """

    def __init__(self, kind: Pooling, length: int) -> None:
        """Pool a prompt of ``length`` tokens: the mean of all, or the last. Raises RequestError for another kind."""
        kinds = get_args(Pooling)
        if not isinstance(kind, str) or kind not in kinds:
            raise RequestError("pooling", f"{shown(kind)} is none", unknown_key_remedy(shown(kind), kinds))
        self.begin = 0 if kind == "mean" else length - 1
        """The first position that counts."""
        self._length = length
        self._taken: tuple[int, NDArray[np.float64] | None] = self.begin, None  # the next position, and the sum

    def take(self, position: int, hidden: NDArray[np.float32]) -> None:
        """Take the states of positions from ``position`` on: (rows, hidden)."""
        following, total = self._taken
        new = hidden[following - position : self._length - position] if position <= following else hidden[:0]
        if not len(new):
            return
        total = np.zeros(hidden.shape[1]) if total is None else total.copy()
        for row in new:
            total += row
        self._taken = following + len(new), total

    def result(self, normalize: bool) -> NDArray[np.float32]:
        """Return the vector, (hidden,) float32, of length 1 if ``normalize``; raises EndedError if rows are missing."""
        following, total = self._taken
        if following < self._length or total is None:
            raise EndedError("prompt", "it ended before all of it was computed", "give it more time")
        vector = total / (self._length - self.begin)
        length = np.sqrt((vector * vector).sum())
        return (vector / length if normalize and length > 0 else vector).astype(np.float32)
