"""Which of a batch's sequences make it fail with numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable

from infeng_core.backends.interface import NotFiniteError
from infeng_core.batch import Batch, RunningRequest, Segment, part


def culprits(run: Callable[[Batch], object], batch: Batch) -> list[RunningRequest]:
    """Return the sequences whose rows make ``run`` raise NotFiniteError by themselves, often none.

    They are found by halves: rows may run again, in any company.
    """

    def among(segments: list[Segment]) -> list[RunningRequest]:
        try:
            run(part(batch, segments))
        except NotFiniteError:
            half = len(segments) // 2
            return among(segments[:half]) + among(segments[half:]) if half else [segments[0].sequence]
        return []

    return among(batch.segments)
