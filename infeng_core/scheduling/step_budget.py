"""The room for prompts in a step: rows, sampled rows, and time beside the decoding rows."""

from __future__ import annotations

from infeng_core.batch import RunningRequest, Uses, runs_of
from infeng_core.scheduling.cost import CostModel, StepShape

LEAST_CHUNK = 8
"""Rows of prompts that fit in any step, however short its time, so that prompts advance too."""

UNKNOWN_CHUNK = 64
"""Rows of prompts beside decoding sequences until a step has shown the cost of rows."""


class StepBudget:
    """The rows and time left of a step while sequences with prompts take rows of it."""

    def __init__(self, shape: StepShape, rows: int, samples: int, costs: CostModel, seconds: float | None) -> None:
        """Leave ``rows`` rows and ``samples`` sampled ones for prompts.

        shape: of the decoding rows. samples: including one for every running sequence. seconds: the limit of the
        whole step, by ``costs``; None: no limit.
        """
        self.shape = shape
        """Shape of the decoding rows and the prompts with rows, as far as it depends on their positions."""
        self.reported = 0
        """Sampled rows of prompts whose next tokens are known."""
        self._rows = rows
        self._samples = samples
        self._costs = costs
        self._seconds = seconds
        self._taken = 0
        self._uses: set[Uses] = set()  # of prompts, whose rows come last

    def may_run(self, running: int) -> bool:
        """Return whether there is a row for one more prompt, and a sampled row for each of ``running`` sequences."""
        return self.reported + running <= self._samples and self._rows_from(0, self.shape) > 0

    def take(self, sequence: RunningRequest, running: int) -> int:
        """Allocate rows for the prompt of one of ``running`` sequences; return how many."""
        begin = sequence.computed
        # Rows of several runs are no neighbours of those of other prompts; the last run is counted ahead of its rows.
        runs = [uses for _, uses in runs_of(sequence, begin, sequence.length)]
        ranges = sum(map(len, runs)) if len(runs) > 1 or runs[0] not in self._uses else 0
        shape = self.shape._replace(sampled=self.shape.sampled + 1, adapters=self.shape.adapters + ranges)
        count = min(sequence.length - begin, self._rows_from(begin, shape))
        if sequence.report_from is not None:
            silent = max(0, sequence.report_from - begin)  # rows before the first reported one
            count = min(count, silent + 1 + self._samples - self.reported - running)
            self.reported += max(0, count - silent - 1)
        if count > 0:
            self._taken += count
            self._uses.update(runs)
            attended = count * begin + count * (count + 1) // 2
            self.shape = shape._replace(rows=shape.rows + count, attended=shape.attended + attended)
        return count

    def _rows_from(self, position: int, shape: StepShape) -> int:
        left = self._rows - self._taken
        return rows_of_prompt(self._costs, self._seconds, shape, position, left, self._taken)


def rows_of_prompt(
    costs: CostModel, seconds: float | None, shape: StepShape, position: int, left: int, taken: int = 0
) -> int:
    """Return how many rows of a prompt, from ``position`` on, may join a step of ``shape`` with a limit of
    ``seconds``, which nearly all steps keep.

    left: free rows of the step. taken: rows of other prompts.
    """
    if seconds is None or left <= 0:
        return left
    if not costs.is_fitted:
        return min(left, UNKNOWN_CHUNK - taken)
    return min(left, max(costs.rows_within(seconds / costs.margin, shape, position, left), LEAST_CHUNK - taken))
