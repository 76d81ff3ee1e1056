"""The observer interface, through which metrics, traces and the access log are notified of each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Record:
    """One choice of one call. Times are seconds of ``time.perf_counter``, 0 for events that did not occur."""

    id: str
    route: str
    tenant: str
    model: str
    """The model's name in the call."""
    adapter: str = ""
    """Names of adapters joined by +, or "" for the base model."""
    client: str = ""
    """The client's address."""
    traceparent: str = ""
    """The W3C traceparent header, or ""."""
    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    prompt_tokens: int = 0
    """Set once the request is accepted."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; set with the first token."""
    completion_tokens: int = 0
    drafted_tokens: int = 0
    """Guessed tokens that steps verified."""
    accepted_tokens: int = 0
    """The guessed tokens that became part of the answer."""
    requests: int = 0
    """Requests of the call, set in the record of its first one."""
    wall: float = 0.0
    """Arrival as Unix time in seconds."""
    arrived: float = 0.0
    """When the call's head had been read."""
    submitted: float = 0.0
    """When the engine accepted the request."""
    started: float = 0.0
    """When the first step of the request began."""
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0
    status: int = 0
    finish_reason: str = ""
    """stop, length, tool_calls, cancelled, timeout or error."""
    error: str = ""


class Observer(Protocol):
    """Methods are called on the event loop's thread; they must be fast and raise nothing."""

    def accepted(self, record: Record) -> None:
        """Note that the engine accepted the request."""

    def tokens(self, record: Record, new: int, now: float) -> None:
        """Note ``new`` tokens at ``now``; ``record.last_token`` is still the time of the tokens before."""

    def ended(self, record: Record) -> None:
        """Note that an accepted request ended, for any reason; all known fields of the record are set."""

    def rejected(self, record: Record, reason: str) -> None:
        """Note that the call was rejected. reason: a word such as overloaded, unauthorized, invalid, not_found."""
