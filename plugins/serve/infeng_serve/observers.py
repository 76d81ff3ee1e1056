"""Who watches the server: metrics, traces and the access log are told of each request by the same few calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Record:
    """One choice of one call. Times are seconds of ``time.perf_counter``, 0 where it did not come to that."""

    id: str
    route: str
    tenant: str
    model: str
    """As the client named it."""
    adapter: str = ""
    """Names joined by +, or "" for the base model."""
    client: str = ""
    """Address."""
    traceparent: str = ""
    """As W3C has it, or ""."""
    max_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    prompt_tokens: int = 0
    """Known once it is accepted."""
    cached_tokens: int = 0
    """Those of them that the cache had; known with the first token."""
    completion_tokens: int = 0
    wall: float = 0.0
    """When it came, seconds since 1970."""
    arrived: float = 0.0
    """When its head had been read."""
    submitted: float = 0.0
    """When the engine had it."""
    started: float = 0.0
    """When its first step began."""
    first_token: float = 0.0
    last_token: float = 0.0
    ended: float = 0.0
    status: int = 0
    finish_reason: str = ""
    """stop, length, tool_calls, cancelled, timeout or error."""
    error: str = ""


class Observer(Protocol):
    """All calls come on the event loop's thread, are cheap and raise nothing."""

    def accepted(self, record: Record) -> None:
        """The engine has taken it."""

    def tokens(self, record: Record, new: int, now: float) -> None:
        """It got tokens; ``record.last_token`` still is that of those before."""

    def ended(self, record: Record) -> None:
        """It has ended, whatever way; everything of the record that is known is set."""

    def rejected(self, record: Record, reason: str) -> None:
        """It was never accepted: ``reason`` is a word such as overloaded, unauthorized, invalid, not_found."""
