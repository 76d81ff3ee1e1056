"""What was served of whom, for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from infeng_core.api import RunningRequest

OTHERS = "(others)"
"""Stands for all tenants, or adapters, beyond those that are told apart."""


@dataclass(slots=True)
class Counts:
    """Of one tenant or of one set of adapters, since the policy was made."""

    requests: int = 0
    """That came."""
    waiting: int = 0
    """That wait now."""
    running: int = 0
    """That run now."""
    preemptions: int = 0
    prompt_tokens: int = 0
    """That were computed."""
    cached_tokens: int = 0
    """Of prompts, that were found in the cache."""
    new_tokens: int = 0

    def add(self, other: Counts) -> None:
        """Count what another one has counted."""
        for field in fields(Counts):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def values(self) -> dict[str, int]:
        """Return the figures by their names."""
        return {field.name: getattr(self, field.name) for field in fields(Counts)}


class ByAdapters:
    """Counts of each set of adapters; a bounded number of them is told apart."""

    def __init__(self, most: int) -> None:
        """Tell the first ``most`` apart that come."""
        self._most = most
        self._counts: dict[str, Counts] = {}

    def of(self, request: RunningRequest) -> Counts:
        """Return the counts of a request's adapters."""
        name = label(request)
        if name not in self._counts and len(self._counts) >= self._most:
            name = OTHERS
        return self._counts.setdefault(name, Counts())

    def values(self) -> Mapping[str, Counts]:
        """Return all of them by name; "" is the base alone."""
        return self._counts


def label(request: RunningRequest) -> str:
    """Return a name of a request's adapters: "" of none, "a+b" of several, whatever their weights."""
    adapter = request.request.adapter
    if adapter is None or isinstance(adapter, str):
        return adapter or ""
    return "+".join(name for name, _ in adapter)
