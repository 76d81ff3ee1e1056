"""Admission of requests: bounds in requests, in tokens, and in the time until the first token."""

from __future__ import annotations

from collections import Counter, deque

from infeng_core.errors import OverloadedError
from infeng_core.record import Record
from infeng_core.scheduling.cost import CostModel

REMEMBERED = 64
"""The number of latest starts from which the start rate of waiting requests is taken."""


class Bounds(Record):
    """Bounds of the waiting requests; None: no bound."""

    requests: int | None = None
    tokens: int | None = None
    """Tokens of prompts."""
    seconds: float | None = None
    """Predicted seconds until the requests before a new one are done; its own prompt is not counted."""


class Backlog:
    """Accepted requests that have not started. Any thread may call any method.

    All counts follow from one dictionary, which each call changes in one operation: an interrupt between any two
    lines leaves it right.
    """

    def __init__(self, bounds: Bounds, costs: CostModel, chunk: int) -> None:
        """Refuse requests beyond ``bounds``; ``costs`` predict the time of prompts in steps of ``chunk`` rows."""
        self._bounds = bounds
        self._costs = costs
        self._chunk = chunk
        self.shares = False
        """Whether tenants take turns: another tenant's waiting tokens count no more than one's own."""
        self._tokens: dict[int, tuple[int, str]] = {}  # prompt tokens and tenant, by request id
        self._starts: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)  # (time, tokens) since last empty

    @property
    def requests(self) -> int:
        """The number of waiting requests."""
        return len(self._tokens)

    @property
    def tokens(self) -> int:
        """The tokens of their prompts together."""
        return sum(tokens for tokens, _ in list(self._tokens.values()))

    def ahead(self, tokens: int, tenant: str) -> int:
        """Return how many prompt tokens precede a tenant's new prompt of ``tokens``."""
        if not self.shares:
            return self.tokens
        of: Counter[str] = Counter()
        for count, whose in list(self._tokens.values()):
            of[whose] += count
        own = of.pop(tenant, 0)
        return own + sum(min(count, own + tokens) for count in of.values())

    def check(self, tokens: int, coming: int = 0, tenant: str = "") -> None:
        """Raise OverloadedError if a tenant's prompt of ``tokens`` may not wait as well.

        coming: accepted requests that have not entered; they count as soon as any request waits.
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
        """Stop counting a request that starts or has ended; an unknown one is ignored."""
        found = self._tokens.pop(id_, None)
        if found is not None and started:
            self._starts.append((now, found[0]))
        if not self._tokens:
            self._starts.clear()  # without waiting requests the start rate is unknown

    def seconds(self, ahead: int | None = None) -> float:
        """Return the time for so many prompt tokens, by default of all waiting requests.

        It follows from the cost of the prompts and, if they wait for other requests to end, from the rate of recent
        starts.
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
