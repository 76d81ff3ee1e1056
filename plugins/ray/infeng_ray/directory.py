"""The directory in which replicas enter their addresses: an actor, so it imports nothing else of this package."""

from __future__ import annotations

import time

STALE_SECONDS = 15.0
"""Seconds after which a replica that enters nothing is left out."""


class Directory:
    """The addresses of all replicas."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[str, tuple[str, float]] = {}

    def enter(self, name: str, url: str) -> None:
        """Note that a replica is there."""
        self._entries[name] = (url, time.monotonic())

    def leave(self, name: str) -> None:
        """Note that it drains."""
        self._entries.pop(name, None)

    def members(self) -> dict[str, str]:
        """Return the URLs of the replicas by name."""
        oldest = time.monotonic() - STALE_SECONDS
        self._entries = {name: entry for name, entry in self._entries.items() if entry[1] >= oldest}
        return {name: url for name, (url, _) in self._entries.items()}
