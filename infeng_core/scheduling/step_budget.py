"""How much of prompts a step has room for: rows, sampled rows, and time beside the decoding rows."""

from __future__ import annotations

from infeng_core.batch import AdapterHandle, RunningRequest, uses_of
from infeng_core.scheduling.cost import CostModel, StepShape

LEAST_CHUNK = 8
"""Rows of prompts that a step has room for, however little time it is to take: prompts get on as well."""

UNKNOWN_CHUNK = 64
"""Rows of prompts beside sequences that decode, as long as no step has shown what rows cost."""


class StepBudget:
    """The rows and time left of a step while sequences with prompts take rows of it."""

    def __init__(self, shape: StepShape, rows: int, samples: int, costs: CostModel, seconds: float | None) -> None:
        """Leave ``rows`` rows and ``samples`` sampled ones for prompts.

        shape: of the decoding rows. samples: with one for every sequence that runs. seconds: what the whole step may
        take, by ``costs``; None: any.
        """
        self.shape = shape
        """Of the decoding rows and the prompts that have rows, as far as it depends on their positions."""
        self.reported = 0
        """Sampled rows of prompts whose next tokens are known."""
        self._rows = rows
        self._samples = samples
        self._costs = costs
        self._seconds = seconds
        self._taken = 0
        self._uses: set[tuple[tuple[AdapterHandle, float], ...]] = set()  # of prompts, whose rows follow all others

    def may_run(self, running: int) -> bool:
        """Return whether there is a row for one more prompt, and sampled ones for ``running`` sequences."""
        return self.reported + running <= self._samples and self._rows_from(0, self.shape) > 0

    def take(self, sequence: RunningRequest, running: int) -> int:
        """Return how many rows the prompt of one of ``running`` sequences gets; they are taken."""
        begin, uses = sequence.computed, uses_of(sequence)
        shape = self.shape._replace(sampled=self.shape.sampled + 1)
        if uses not in self._uses:
            shape = shape._replace(adapters=shape.adapters + len(uses))
        count = min(sequence.length - begin, self._rows_from(begin, shape))
        if sequence.report_from is not None:
            silent = max(0, sequence.report_from - begin)  # rows before the first that is reported
            count = min(count, silent + 1 + self._samples - self.reported - running)
            self.reported += max(0, count - silent - 1)
        if count > 0:
            self._taken += count
            self._uses.add(uses)
            attended = count * begin + count * (count + 1) // 2
            self.shape = shape._replace(rows=shape.rows + count, attended=shape.attended + attended)
        return count

    def _rows_from(self, position: int, shape: StepShape) -> int:
        left = self._rows - self._taken
        return rows_of_prompt(self._costs, self._seconds, shape, position, left, self._taken)


def rows_of_prompt(
    costs: CostModel, seconds: float | None, shape: StepShape, position: int, left: int, taken: int = 0
) -> int:
    """Return how many rows of a prompt, from ``position`` on, may join a step of ``shape`` that is to take ``seconds``.

    left: free rows of the step. taken: rows that other prompts have.
    """
    if seconds is None or left <= 0:
        return left
    if not costs.is_fitted:
        return min(left, UNKNOWN_CHUNK - taken)
    return min(left, max(costs.rows_within(seconds, shape, position, left), LEAST_CHUNK - taken))
