"""What one request needs of the registry, from its submission to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.errors import InfengError

if TYPE_CHECKING:
    from infeng_core.adapters.records import Entry, Resident
    from infeng_core.adapters.registry import Registry


class Lease:
    """The adapters of one request. A scheduler asks for them with ``acquire`` and gives them back with ``close``.

    Until then they may come and go; in between they stay where they are, whatever happens to their names.
    """

    __slots__ = (
        *("entries", "error", "is_closed", "overtaken", "owner", "registry", "residents", "rows", "weights"),
        "__weakref__",
    )

    def __init__(self, registry: Registry, entries: tuple[Entry, ...], weights: tuple[float, ...]) -> None:
        """Made by ``Registry.lease``."""
        self.registry = registry
        self.entries = entries
        self.weights = weights
        self.residents: tuple[Resident, ...] = ()
        self.rows: tuple[tuple[Any, float], ...] = ()
        """(handle, weight) of each adapter, in the request's order; empty until acquired."""
        self.error: InfengError | None = None
        self.is_closed = False
        self.overtaken = 0
        """How many that came later were admitted before, kept by the scheduler."""
        self.owner: Any = None
        """The request on its way, kept by the engine."""

    def acquire(self) -> bool:
        """Take the adapters if all of them are in memory; return whether the request has them."""
        if self.residents:
            return True
        for entry in self.entries:  # without the lock: a wrong answer is corrected below or at the next step
            if entry.resident is None:
                return False
        return self.registry.acquire(self)

    def close(self) -> None:
        """Give the adapters back, or stop waiting for them; calling it again does nothing."""
        self.registry.release(self)
