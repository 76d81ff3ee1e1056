"""Whether one more request may wait: bounds in requests, in tokens, and in the time until its first token."""

from __future__ import annotations

from collections import Counter, deque

from infeng_core.errors import OverloadedError
from infeng_core.record import Record
from infeng_core.scheduling.cost import CostModel

REMEMBERED = 64
"""Starts from which the rate is taken at which waiting requests come to run."""


class Bounds(Record):
    """Of what waits; None: any."""

    requests: int | None = None
    tokens: int | None = None
    """Tokens of prompts."""
    seconds: float | None = None
    """Predicted for the new request, until those before it are through; its own prompt takes what it takes."""


class Backlog:
    """Requests that were accepted and have not started. Any thread may ask and enter.

    All counts follow from one dictionary, which each call changes in one operation: an interrupt between any two
    lines leaves it right.
    """

    def __init__(self, bounds: Bounds, costs: CostModel, chunk: int) -> None:
        """Refuse what is out of ``bounds``; ``costs`` say how long prompts take in steps of ``chunk`` rows."""
        self._bounds = bounds
        self._costs = costs
        self._chunk = chunk
        self.shares = False
        """Whether tenants take turns: what waits of another counts no more than what waits of one's own."""
        self._tokens: dict[int, tuple[int, str]] = {}  # of the prompts, and whose, by the ids of their requests
        self._starts: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)  # (when, tokens), since it was empty last

    @property
    def requests(self) -> int:
        """How many wait."""
        return len(self._tokens)

    @property
    def tokens(self) -> int:
        """Tokens of their prompts together."""
        return sum(tokens for tokens, _ in list(self._tokens.values()))

    def ahead(self, tokens: int, tenant: str) -> int:
        """Return how many tokens of prompts come before a tenant's new one of ``tokens``."""
        if not self.shares:
            return self.tokens
        of: Counter[str] = Counter()
        for count, whose in list(self._tokens.values()):
            of[whose] += count
        own = of.pop(tenant, 0)
        return own + sum(min(count, own + tokens) for count in of.values())

    def check(self, tokens: int, coming: int = 0, tenant: str = "") -> None:
        """Raise OverloadedError where a tenant's prompt of ``tokens`` may not wait as well.

        coming: requests that were let in and have not entered; they count as soon as any waits.
        """
        bounds, waiting = self._bounds, self.requests
        waiting += coming if waiting else 0
        if bounds.requests is not None and waiting >= bounds.requests:
            self._refuse("requests", f"{waiting} requests wait already (scheduler.max_waiting)", tokens)
        if bounds.tokens is not None and (there := self.tokens) + tokens > bounds.tokens and there:
            self._refuse("tokens", f"prompts of {there} tokens wait already (scheduler.max_waiting_tokens)", tokens)
        if bounds.seconds is not None and (wait := self.seconds(self.ahead(tokens, tenant))) > bounds.seconds:
            why = f"it would wait {wait:.1f} s for others (scheduler.max_wait_ms)"
            raise OverloadedError(why, reason="wait", retry_after=max(0.05, wait - bounds.seconds))

    def enter(self, id_: int, tokens: int, tenant: str = "") -> None:
        """Count a request that waits from now on."""
        self._tokens[id_] = tokens, tenant

    def leave(self, id_: int, now: float, *, started: bool = False) -> None:
        """Count a request no longer, that starts or has ended; one that is not counted is ignored."""
        found = self._tokens.pop(id_, None)
        if found is not None and started:
            self._starts.append((now, found[0]))
        if not self._tokens:
            self._starts.clear()  # none waits, so no wait says how fast others start

    def seconds(self, ahead: int | None = None) -> float:
        """Return how long prompts of so many tokens together take, all that wait if none are given.

        By the cost of the prompts and, where they wait for others to end, by the rate at which they have come to run.
        """
        ahead = self.tokens if ahead is None else ahead
        seconds = self._costs.prompt_seconds(ahead, self._chunk)
        starts = list(self._starts)
        if len(starts) > 1 and starts[-1][0] > starts[0][0]:
            rate = sum(count for _, count in starts[1:]) / (starts[-1][0] - starts[0][0])
            seconds = max(seconds, ahead / rate if rate else 0.0)
        return seconds

    def _refuse(self, reason: str, why: str, tokens: int) -> None:
        bounds, ahead = self._bounds, self.tokens
        over = tokens
        if reason == "requests":
            over = ahead // max(1, self.requests)
        elif reason == "tokens" and bounds.tokens is not None:
            over = ahead + tokens - bounds.tokens
        wait = self.seconds()
        retry = wait * min(1.0, over / ahead) if ahead else wait
        raise OverloadedError(why, reason=reason, retry_after=max(0.05, retry))
