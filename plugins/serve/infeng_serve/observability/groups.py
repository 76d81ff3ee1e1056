"""Counts by tenant or adapter, for a bounded number of them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from infeng_serve.observability.exposition import Histogram
from infeng_serve.observability.families import FIRST_TOKEN

OTHER = "other"
"""Name of the group for all tenants or adapters beyond the bound."""


class Group:
    """Counts of one tenant or adapter."""

    __slots__ = ("first_token", "generated", "in_flight", "name", "prompted", "rejected", "requests")

    def __init__(self, name: str) -> None:
        """Start at 0."""
        self.name = name
        self.in_flight = 0
        self.requests = 0
        self.rejected = 0
        self.prompted = 0
        """Prompt tokens."""
        self.generated = 0
        """New tokens."""
        self.first_token = Histogram(FIRST_TOKEN)


class Groups:
    """Groups by name. Their number is bounded, so that clients cannot create metrics without end."""

    def __init__(self, most: int) -> None:
        """Keep the first ``most`` names apart; later ones share a group."""
        self._most = most
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        """Iterate over all groups."""
        return iter(self._groups.values())

    def __contains__(self, name: str) -> bool:
        """Return whether a name has its own group."""
        return name in self._groups

    def of(self, name: str) -> Group:
        """Return a name's group, which is the shared one beyond the bound."""
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) - (OTHER in self._groups) >= self._most:
                name = OTHER
            group = self._groups.setdefault(name, Group(name))
        return group

    def keep(self, names: Container[str]) -> None:
        """Remove groups of other names that have no request in flight, which makes room for new names."""
        for name, group in list(self._groups.items()):
            if name not in names and name != OTHER and not group.in_flight:
                del self._groups[name]
