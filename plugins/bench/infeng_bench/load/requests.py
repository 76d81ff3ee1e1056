"""A request, and what became of it: the same records for an engine, a server and another engine's process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from infeng_bench.stats.contention import NOTHING, Waits


@dataclass(frozen=True)
class Job:
    """A request: its time in seconds after the beginning, its prompt's ids and its new tokens."""

    at: float
    prompt: Sequence[int]
    new: int
    adapter: str | None = None
    tenant: str = ""
    priority: int = 0
    temperature: float = 0.0
    seed: int | None = None


@dataclass(slots=True, eq=False)
class Reply:
    """What became of a request; times are seconds after the beginning, NaN for an event that did not happen."""

    job: Job
    sent: float = math.nan
    begun: float = math.nan  # first step; unknown to the clients of a server
    times: list[float] = field(default_factory=list)
    """Of an engine, the time of each new token. Of a server, each arrival of bytes with text, or of a whole answer."""
    count: int = 0  # new tokens
    ids: list[int] = field(default_factory=list)  # unknown to the clients of a server
    cached: int = 0  # tokens of the prompt that were found in the prefix cache
    drafted: int = 0
    accepted: int = 0
    ended: float = math.nan
    failure: str = ""  # the reason why it was not answered
    refused: float = math.nan  # seconds until it was refused, if it was

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended, or never will."""
        return not math.isnan(self.ended)

    @property
    def is_done(self) -> bool:
        """Whether the whole answer is there."""
        return self.is_over and not self.failure

    def fail(self, why: str, now: float) -> None:
        """End it without an answer, unless it has ended before."""
        if not self.is_over:
            self.failure, self.ended = why, now


@dataclass(frozen=True)
class Served:
    """All requests of one round on one engine, and the time and memory of its process."""

    replies: Sequence[Reply]
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    waits: Waits = NOTHING  # of the engine's threads; NOTHING if not measured
    client_cpu_seconds: float | None = None  # of the clients of a server, on the same cores
    loop_cpu_seconds: float | None = None
    """CPU seconds of a server's first thread, INF-ENG's event loop; None if the system does not report it."""

    @property
    def tokens(self) -> int:
        """All new tokens."""
        return sum(reply.count for reply in self.replies)
