"""What was served of one tenant, or with one adapter; a bounded number of them is told apart."""

from __future__ import annotations

from collections.abc import Container, Iterator

from infeng_serve.observability.exposition import Histogram
from infeng_serve.observability.families import FIRST_TOKEN

OTHER = "other"
"""Stands for all beyond those that are told apart."""


class Group:
    """Counts of one tenant or adapter."""

    __slots__ = ("first_token", "generated", "in_flight", "name", "prompted", "rejected", "requests")

    def __init__(self, name: str) -> None:
        """Begin with nothing."""
        self.name = name
        self.in_flight = 0
        self.requests = 0
        self.rejected = 0
        self.prompted = 0
        """Tokens of prompts."""
        self.generated = 0
        """New tokens."""
        self.first_token = Histogram(FIRST_TOKEN)


class Groups:
    """Groups by name: the first that come are told apart, so that no client can make metrics without end."""

    def __init__(self, most: int) -> None:
        """Tell ``most`` apart."""
        self._most = most
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        """Give all of them."""
        return iter(self._groups.values())

    def __contains__(self, name: str) -> bool:
        """Return whether a name is told apart from others."""
        return name in self._groups

    def of(self, name: str) -> Group:
        """Return the group of a name."""
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) - (OTHER in self._groups) >= self._most:
                name = OTHER
            group = self._groups.setdefault(name, Group(name))
        return group

    def keep(self, names: Container[str]) -> None:
        """Forget those of other names that have nothing in flight: their places are free again."""
        for name, group in list(self._groups.items()):
            if name not in names and name != OTHER and not group.in_flight:
                del self._groups[name]
