"""Counts of requests and tokens for metrics, by tenant and by adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from infeng_core.api.engines import RunningRequest

OTHERS = "(others)"
"""Name of the shared entry for all tenants, or adapters, beyond the bound."""


@dataclass(slots=True)
class Counts:
    """Counts of one tenant or of one set of adapters, since the policy was made."""

    requests: int = 0
    """Requests added."""
    waiting: int = 0
    """Requests that wait now."""
    running: int = 0
    """Requests that run now."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """Prompt tokens that were computed."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    new_tokens: int = 0

    def add(self, other: Counts) -> None:
        """Add another one's figures to these."""
        for field in fields(Counts):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def values(self) -> dict[str, int]:
        """Return the figures by their names."""
        return {field.name: getattr(self, field.name) for field in fields(Counts)}


class ByAdapters:
    """Counts of each set of adapters; a bounded number of sets is told apart."""

    def __init__(self, most: int) -> None:
        """Tell the first ``most`` sets apart; later ones share an entry."""
        self._most = most
        self._counts: dict[str, Counts] = {}

    def of(self, request: RunningRequest) -> Counts:
        """Return the counts of a request's adapters."""
        name = label(request)
        if name not in self._counts and len(self._counts) >= self._most:
            name = OTHERS
        return self._counts.setdefault(name, Counts())

    def values(self) -> Mapping[str, Counts]:
        """Return the counts by name; "" is the base model alone."""
        return self._counts


def label(request: RunningRequest) -> str:
    """Return a name for a request's adapters: "" for none, "a+b" for several, whatever their weights."""
    adapter = request.request.adapter
    if adapter is None or isinstance(adapter, str):
        return adapter or ""
    return "+".join(name for name, _ in adapter)
