"""The sequences of a batch whose numbers are not finite."""

from __future__ import annotations

from collections.abc import Callable

from infeng_core.backends.interface import NotFiniteError
from infeng_core.batch import Batch, RunningRequest, Segment, part


def failing_requests(run: Callable[[Batch], object], batch: Batch) -> list[RunningRequest]:
    """Return the sequences whose rows alone make ``run`` raise NotFiniteError, often none.

    The batch is halved repeatedly: rows may run again, in any company.
    """

    def among(segments: list[Segment]) -> list[RunningRequest]:
        try:
            run(part(batch, segments))
        except NotFiniteError:
            half = len(segments) // 2
            return among(segments[:half]) + among(segments[half:]) if half else [segments[0].sequence]
        return []

    return among(batch.segments)
