"""The interface of a scheduler plugin: which request starts next, how long a step may take, which one is preempted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from infeng_core.batch import Limits, RunningRequest


class Served(NamedTuple):
    """The work of one step for one request."""

    request: RunningRequest
    """The request, as it is after the step."""
    prompt_rows: int
    """Computed positions of its prompt, without those found in the cache."""
    new_tokens: int
    """Tokens that were drawn for it."""


class Policy(Protocol):
    """The order of work. The scheduler (scheduler.py) follows it, and manages rows, cache blocks and adapters.

    A policy is pure: it reads no clock and does no I/O; ``now`` is in seconds, and never decreases. It is called
    between steps, on one thread. A subclass overrides the decisions in which it differs from first-come (fcfs.py).
    Factories are registered by name through the hook ``infeng_policies``, as ``factory(limits: Limits) -> Policy``.
    """

    shares: bool = False
    """Whether tenants take turns, so that a tenant waits for no more tokens of another than of its own."""

    def add(self, request: RunningRequest, now: float) -> None:
        """Record a request that waits from now on: a new one, or one that was preempted."""

    def remove(self, request: RunningRequest, now: float) -> None:
        """Forget a waiting request: it has started (``request.started`` is ``now``) or ended."""

    def order(self, now: float) -> Iterable[RunningRequest]:
        """Return the waiting requests in the order in which they should start; it is read as far as needed.

        A request that is left out does not start in this step. No later request starts in place of the first one that
        lacks cache blocks. A request whose adapters are being loaded is passed over in the meantime.
        """

    def active(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return the running requests that may have rows in this step; the others keep their blocks.

        If none of them has rows, and no request starts, it is called once more.
        """
        return running

    def prompts(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return the running requests with uncomputed prompts, in the order in which they get rows."""
        return running

    def victim(self, running: Sequence[RunningRequest], now: float) -> RunningRequest:
        """Return the request to preempt when the cache is full; ``running`` is in starting order."""
        return running[-1]

    def displaced(
        self, request: RunningRequest, running: Sequence[RunningRequest], now: float
    ) -> RunningRequest | None:
        """Return the running request to preempt for the next waiting one that lacks room; None: it waits."""
        return None

    def seconds(self, decoding: Sequence[RunningRequest], now: float) -> float | None:
        """Return how long a step with prompts may take; ``decoding``: the requests that decode in it.

        None: ``scheduler.step_ms`` if a request decodes, else no limit.
        """
        return None

    def served(self, work: Sequence[Served], now: float) -> None:
        """Record a step that has run."""
        return

    def ended(self, request: RunningRequest, now: float) -> None:
        """Record the end of a request, waiting or running."""
        return

    def attach(self, cached: Callable[[RunningRequest], int]) -> None:
        """Take a function that returns how many tokens of a waiting request are cached; called first, and once.

        The function takes microseconds per 100 tokens. Without a prefix cache it is not passed.
        """
        return


PolicyFactory = Callable[[Limits], Policy]
