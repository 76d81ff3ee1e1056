"""A scheduler: the shortest prompt first, and nobody waits for ever. ``scheduler: {use: shortest}``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from infeng_core.api import Limits, Policy, RunningRequest, hookimpl


class Shortest(Policy):
    """Who has waited for ``patience`` seconds goes before shorter ones, the longest wait first."""

    def __init__(self, patience: float, limits: Limits) -> None:
        """Nobody waits yet."""
        self._patience = patience
        self._waiting: list[RunningRequest] = []

    def add(self, request: RunningRequest, now: float) -> None:
        """Let a request wait."""
        self._waiting.append(request)

    def remove(self, request: RunningRequest, now: float) -> None:
        """Let it wait no longer."""
        self._waiting.remove(request)

    def order(self, now: float) -> list[RunningRequest]:
        """Return those that wait, who is next first."""

        def place(request: RunningRequest) -> tuple[bool, float]:
            is_late = now - request.arrived >= self._patience
            return not is_late, request.arrived if is_late else request.length

        return sorted(self._waiting, key=place)


@hookimpl
def infeng_policies(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy."""
    return {"shortest": partial(Shortest, settings["patience"])}
