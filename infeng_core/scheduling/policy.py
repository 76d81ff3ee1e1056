"""The interface of a scheduler plugin: which request is next, what a step may cost, and which has to wait again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from infeng_core.batch import Limits, RunningRequest


class Served(NamedTuple):
    """The work of one step for one request."""

    request: RunningRequest
    prompt_rows: int
    """Positions of its prompt that were computed; those found in the cache are not among them."""
    new_tokens: int


class Policy(Protocol):
    """The order of work. The scheduler (scheduler.py) keeps to it, and sees to rows, cache blocks and adapters.

    A policy is pure: it reads no clock and does no I/O; ``now`` is in seconds, and never less than it was. It is called
    between steps, on one thread. A subclass overrides what it decides otherwise than first-come (fcfs.py). Registered
    by name through the hook ``infeng_policies``, as ``factory(limits: Limits) -> Policy``.
    """

    shares: bool = False
    """Whether tenants take turns, so that one waits for no more of another's than of its own."""

    def add(self, request: RunningRequest, now: float) -> None:
        """Take note of a request that waits from now on: a new one, or one that was preempted."""

    def remove(self, request: RunningRequest, now: float) -> None:
        """Forget one of those: it has started (``request.started`` is ``now``) or is gone."""

    def order(self, now: float) -> Iterable[RunningRequest]:
        """Return the waiting requests in the order in which they should start; read as far as needed.

        A request that is not named does not start in this step. No request behind the first one that lacks cache blocks
        starts in its place. A request whose adapters are being loaded is passed by, for as long as that takes.
        """

    def active(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return which running requests may have rows in this step; the others keep their blocks.

        Where none has any, and no request starts, it is asked once more.
        """
        return running

    def prompts(self, running: Sequence[RunningRequest], now: float) -> Iterable[RunningRequest]:
        """Return the running requests whose prompts are not computed, in the order in which they get rows."""
        return running

    def victim(self, running: Sequence[RunningRequest], now: float) -> RunningRequest:
        """Return the request that gives its blocks back where the cache is full; ``running`` is in starting order."""
        return running[-1]

    def displaced(
        self, request: RunningRequest, running: Sequence[RunningRequest], now: float
    ) -> RunningRequest | None:
        """Return which running request makes room for one that waits, is next and finds none; None: it waits."""
        return None

    def seconds(self, decoding: Sequence[RunningRequest], now: float) -> float | None:
        """Return how long a step with prompts may take; ``decoding``: the requests that decode in it.

        None: what ``scheduler.step_ms`` says where a request decodes, else any time.
        """
        return None

    def served(self, work: Sequence[Served], now: float) -> None:
        """Take note of a step that has run."""
        return

    def ended(self, request: RunningRequest, now: float) -> None:
        """Take note of the end of a request, wherever it was."""
        return

    def attach(self, cached: Callable[[RunningRequest], int]) -> None:
        """Take what tells how many tokens of a request that waits are in the cache now; called first, and once.

        It takes microseconds for every 100 tokens. Without a cache of prefixes it is not called.
        """
        return


PolicyFactory = Callable[[Limits], Policy]
