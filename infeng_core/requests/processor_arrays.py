"""The wishes of one step's logit processors for its rows, as the arrays that the native sampler reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.batch import NOT_FINITE, Batch, Segment
from infeng_core.errors import InfengError, RequestError
from infeng_core.requests.processors import Adjustment


def guesses(batch: Batch, segment: Segment) -> list[int]:
    """Return the guessed tokens of a segment of whose rows one at least is drawn from."""
    found: list[int] = batch.tokens[segment.row_end - segment.sampled + segment.known + 1 : segment.row_end].tolist()
    return found


Answer = Sequence[Sequence[Adjustment]] | InfengError
"""The wishes of a request's processors for its rows (``Processors.rows``), or why there are none."""


class ProcessorArrays:
    """Masks and changes of all sampled rows, and why some of them cannot be drawn from."""

    def __init__(self, batch: Batch, answers: Mapping[int, Answer]) -> None:
        """Take what the processors of ``batch`` said, by the first row that a request draws from.

        A request without an answer draws nothing in this step, and is computed and asked again in the next.
        """
        self._mask_rows: list[int] = []
        self._masks: list[NDArray[np.uint32]] = []
        self._rows: list[int] = []
        self._changes: list[tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]] = []
        self._errors: dict[int, InfengError] = {}
        self._names: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        """How many of the rows from the first one on that a request draws from may count, by the number of that row."""
        row = 0
        for segment in batch.segments:
            first, row = row + segment.known, row + segment.sampled
            processors = segment.sequence.processors
            if processors is not None and first < row:
                answer = answers.get(first, ())
                if isinstance(answer, InfengError):
                    self._errors[first], answer = answer, [()]
                self.counts[first] = len(answer)
                for place, wanted in enumerate(answer, first):
                    self._names[place] = processors.names
                    self._add(place, wanted)

    def _add(self, row: int, wanted: Sequence[Adjustment]) -> None:
        for one in wanted:
            if one.allowed is not None:
                self._mask_rows.append(row)
                self._masks.append(one.allowed)
            if one.ids is not None:
                count = len(one.ids)
                biases = np.zeros(count, np.float32) if one.biases is None else one.biases
                penalties = np.ones(count, np.float32) if one.penalties is None else one.penalties
                self._rows.append(row)
                self._changes.append((one.ids, penalties, biases))

    def arguments(self) -> dict[str, Any]:
        """Return them as ``_native.sample`` takes them, by name."""
        found: dict[str, Any] = {}
        if self._masks:
            found["masks"] = _native.Masks(np.array(self._mask_rows, np.int32), np.stack(self._masks))
        if self._changes:
            counts = [len(ids) for ids, _, _ in self._changes]
            rows = np.repeat(np.array(self._rows, np.int32), counts)
            found["changes"] = _native.Changes(rows, *map(np.concatenate, zip(*self._changes, strict=True)))
        return found

    def refuse(self, out: NDArray[np.int32]) -> dict[int, InfengError]:
        """Put NOT_FINITE where a row of ``out``, (samples,), has no token because of its processors; return why."""
        for row in np.flatnonzero(out == _native.NOTHING_ALLOWED).tolist():
            why = "there is no token that all of them allow"
            self._errors[row] = RequestError(f"logit processors {self._names[row]}", why, "allow an end token at least")
        for row in self._errors:
            out[row] = NOT_FINITE
        return self._errors
