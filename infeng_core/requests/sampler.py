"""Logits to ids: one native call per step, with every request's parameters as arrays."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import KernelError
from infeng_core.requests.request import MAX_SEED
from infeng_core.step import NOT_FINITE, Batch, Sequence


def draw_seed() -> int:
    """Return a random seed for a request that names none."""
    return secrets.randbelow(MAX_SEED + 1)


def confirmed(drawn: list[int], guesses: list[int]) -> list[int]:
    """Return the tokens that sampling one at a time would have given, none where none was drawn.

    drawn: the first follows the last known token, each other one follows a guess: (guesses + 1,). They stand as far as
    the guesses before them were drawn too; the first that was not guessed still counts, it is what a plain step gives.
    """
    right = 0
    while right < len(guesses) and guesses[right] == drawn[right]:
        right += 1
    return drawn[: right + 1]


class Sampler:
    """Picks one token per sampled row; docs/numerics.md says how."""

    def __init__(self, max_samples: int) -> None:
        """Take the arrays for at most ``max_samples`` rows."""
        self._rows: list[Sequence] = []  # whose parameters the arrays hold
        self._temperature = np.zeros(max_samples, np.float32)
        self._top_k = np.zeros(max_samples, np.int32)
        self._top_p = np.ones(max_samples, np.float32)
        self._min_p = np.zeros(max_samples, np.float32)
        self._seed = np.zeros(max_samples, np.uint64)
        self._position = np.zeros(max_samples, np.int64)
        self._out = np.zeros(max_samples, np.int32)

    def pick(self, logits: NDArray[np.float32], batch: Batch) -> list[list[int]]:
        """Return the new tokens of each segment that has sampled rows: one, and one more for each right guess.

        logits: (samples, vocab) float32. A row that holds NaN or infinity gives NOT_FINITE, always the last.
        """
        drawn = self._draw(logits, batch)
        tokens: list[list[int]] = []
        row = 0
        for segment in batch.segments:
            count = segment.sampled
            if count == 1 and not segment.known:
                tokens.append([drawn[row]])
            elif count:
                first = row + segment.known
                guesses = batch.tokens[segment.row_end - (row + count - first) + 1 : segment.row_end].tolist()
                tokens.append(confirmed(drawn[first : row + count], guesses))
            row += count
        return tokens

    def _draw(self, logits: NDArray[np.float32], batch: Batch) -> list[int]:
        """Return the id that each sampled row gives."""
        rows = [segment.sequence for segment in batch.segments for _ in range(segment.sampled)]
        if rows != self._rows:
            self._take_parameters(rows)
        count = len(rows)
        out = self._out[:count]
        # The counter of the random numbers is the position of the token that is being chosen.
        np.add(batch.positions[batch.sample_rows], 1, out=self._position[:count])
        if count:
            try:
                self._sample(logits, slice(count), out)
            except _native.NativeError as error:
                if error.code != "not_finite":
                    raise KernelError("sampling", str(error)) from error
                self._sample_finite(logits, out)
        drawn: list[int] = out.tolist()
        return drawn

    def _sample(self, logits: NDArray[np.float32], rows: slice | NDArray[np.intp], out: NDArray[np.int32]) -> None:
        _native.sample(
            logits,
            self._temperature[rows],
            self._top_k[rows],
            self._top_p[rows],
            self._min_p[rows],
            self._seed[rows],
            self._position[rows],
            out,
        )

    def _sample_finite(self, logits: NDArray[np.float32], out: NDArray[np.int32]) -> None:
        """Draw from the rows that can be drawn from."""
        out[:] = NOT_FINITE
        finite = np.flatnonzero(np.isfinite(logits).all(axis=1))
        if len(finite):
            drawn = np.empty(len(finite), np.int32)
            self._sample(logits[finite], finite, drawn)
            out[finite] = drawn

    def _take_parameters(self, rows: list[Sequence]) -> None:
        self._rows = []  # until all are in place
        for row, sequence in enumerate(rows):
            params = sequence.request.params
            self._temperature[row] = params.temperature
            self._top_k[row] = params.top_k
            self._top_p[row] = params.top_p
            self._min_p[row] = params.min_p
            self._seed[row] = sequence.seed
        self._rows = rows
