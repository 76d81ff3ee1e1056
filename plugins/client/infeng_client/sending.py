"""The logic of a call without I/O: generators that yield steps and receive the result of each.

The blocking client (``client.py``) and the asyncio client (``aio.py``) perform the same steps; tests perform them on a
virtual clock.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from infeng_client.calls import Call
from infeng_client.errors import ApiError, ServerError, TimedOutError, refusal
from infeng_client.results import Chunk, Json
from infeng_client.retries import Retries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send a call; the result is a Reply, or an ApiError without a response."""

    call: Call
    left: float | None
    """Seconds that the call may take, None for no limit."""
    stream: bool = False
    """Whether to leave the body of a successful response unread."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read more of the body; the result is bytes, empty at the end, or an ApiError."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait ``seconds``; the result is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Give:
    """Pass chunks to the caller; the result is None."""

    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """Headers by lower-case names."""
    body: bytes
    """The body, empty if it was left unread."""

    def json(self) -> Json:
        """Decode the body; raises ServerError if it is not a JSON object."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            start = self.body[:80].decode("utf-8", "replace")
            raise ServerError(self.status, f"the server's answer is not a JSON object: {start!r}")
        return value


Came = Reply | ApiError | bytes | None
Steps = Generator[Send | Read | Wait | Give, Came, T]


@dataclass(frozen=True, slots=True)
class Terms:
    """The limits of a call: its retries and its deadline."""

    retries: Retries
    timeout: float | None
    """Seconds from now on, retries and waits included; None for no limit."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Compute the deadline."""
        deadline = None if self.timeout is None else self.clock() + self.timeout
        object.__setattr__(self, "deadline", deadline)

    def left(self) -> float | None:
        """Return the remaining seconds, None without a limit; raises TimedOutError if there are none."""
        if self.deadline is None:
            return None
        left = self.deadline - self.clock()
        if left <= 0:
            raise TimedOutError(None, f"the call took longer than its timeout of {self.timeout:g} s")
        return left

    def wait(self, failed: int, error: ApiError) -> Wait:
        """Return the wait after ``failed`` failures; raises the error if no attempt is left or fits the deadline."""
        seconds = self.retries.wait(failed, error, self.draw())
        if seconds is None or (self.deadline is not None and self.clock() + seconds >= self.deadline):
            raise error
        return Wait(seconds)

    def error(self, came: Came) -> ApiError | None:
        """Return the error in the result of a Send, None if there is none."""
        if isinstance(came, ApiError):
            return came
        assert isinstance(came, Reply)
        return refusal(came.status, came.headers, came.body, self.wall()) if came.status >= 400 else None


def answered(call: Call, terms: Terms) -> Steps[Reply]:
    """Send a call, with retries, until it is answered; raises the last ApiError."""
    failed = 0
    while True:
        came = yield Send(call, terms.left())
        error = terms.error(came)
        if error is None:
            assert isinstance(came, Reply)
            return came
        failed += 1
        yield terms.wait(failed, error)


def asked_once(call: Call, terms: Terms) -> Steps[Reply]:
    """Send a call once and return its reply of any status; raises ApiError without a response."""
    came = yield Send(call, terms.left())
    if isinstance(came, ApiError):
        raise came
    assert isinstance(came, Reply)
    return came
