"""The interface of places whose adapters are known by name without having been added; a wheel implements it."""

from __future__ import annotations

from typing import Protocol


class AdapterDirectory(Protocol):
    """The adapters of some places by name. Any thread may call any method; none of them waits for another."""

    def find(self, name: str) -> str | None:
        """Return the source of the adapter ``name``, None if there is none.

        Raises AdapterError for one that may not be used.
        """

    def names(self, after: str = "", most: int = 1000) -> list[str]:
        """Return the names that come next after ``after``, sorted, at most ``most`` of them."""
