"""How a call is carried out, without doing it: generators that yield steps and are sent what came of each.

One loop that sleeps and one that awaits carry the same steps out (``client.py``, ``aio.py``); tests do so on a virtual
clock.
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
    """Send a call; comes back as a Reply, or an ApiError where there is none."""

    call: Call
    left: float | None
    """Seconds that it may take, None for no end."""
    stream: bool = False
    """Whether to leave the body of a success unread."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read on; comes back as bytes, empty at the end, or an ApiError."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so many seconds; comes back as None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Give:
    """Give chunks to the caller; comes back as None."""

    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    """By lower-case names."""
    body: bytes
    """Empty where it was left unread."""

    def json(self) -> Json:
        """Return the body; raises ServerError where it is no JSON object."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            start = self.body[:80].decode("utf-8", "replace")
            raise ServerError(self.status, f"the server's answer is no JSON object: {start!r}")
        return value


Came = Reply | ApiError | bytes | None
Steps = Generator[Send | Read | Wait | Give, Came, T]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a call keeps to."""

    retries: Retries
    timeout: float | None
    """Seconds from now to its end, retries and waits included; None for no end."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        """Take the time."""
        deadline = None if self.timeout is None else self.clock() + self.timeout
        object.__setattr__(self, "deadline", deadline)

    def left(self) -> float | None:
        """Return the seconds that are left; raises TimedOutError where there are none."""
        if self.deadline is None:
            return None
        left = self.deadline - self.clock()
        if left <= 0:
            raise TimedOutError(None, f"the call took longer than its timeout of {self.timeout:g} s")
        return left

    def wait(self, failed: int, error: ApiError) -> Wait:
        """Return how long to wait after so many failures; raises the error where it is not worth while."""
        seconds = self.retries.wait(failed, error, self.draw())
        if seconds is None or (self.deadline is not None and self.clock() + seconds >= self.deadline):
            raise error
        return Wait(seconds)

    def error(self, came: Came) -> ApiError | None:
        """Return what is wrong with what came of a Send, None if nothing is."""
        if isinstance(came, ApiError):
            return came
        assert isinstance(came, Reply)
        return refusal(came.status, came.headers, came.body, self.wall()) if came.status >= 400 else None


def answered(call: Call, terms: Terms) -> Steps[Reply]:
    """Send a call until it is answered; raises the last ApiError."""
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
    """Send a call once, whatever the status; raises ApiError where there is no response."""
    came = yield Send(call, terms.left())
    if isinstance(came, ApiError):
        raise came
    assert isinstance(came, Reply)
    return came
