"""What one request needs of the registry, from its submission to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.errors import InfengError

if TYPE_CHECKING:
    from infeng_core.adapters.records import Entry, Resident
    from infeng_core.adapters.registry import Registry


class Lease:
    """The adapters of one request. A scheduler asks for them with ``acquire`` and gives them back with ``close``.

    Until then they may come and go; in between they stay where they are, whatever happens to their names. A request
    that is preempted gives them back with ``release``: they may leave until it acquires them again, and then it has the
    same contents as before, or an error.
    """

    __slots__ = (
        *("contents", "entries", "error", "is_closed", "owner", "registry", "residents", "rows", "weights"),
        "__weakref__",
    )

    def __init__(self, registry: Registry, entries: tuple[Entry, ...], weights: tuple[float, ...]) -> None:
        """Made by ``Registry.lease``."""
        self.registry = registry
        self.entries = entries
        self.weights = weights
        self.contents: tuple[str, ...] = ()
        """Ids of what it was given when it first acquired them; from then on it is nothing else."""
        self.residents: tuple[Resident, ...] = ()
        self.rows: tuple[tuple[Any, float], ...] = ()
        """(handle, weight) of each adapter, in the request's order; empty until acquired."""
        self.error: InfengError | None = None
        self.is_closed = False
        self.owner: Any = None
        """The request on its way, kept by the engine."""

    def is_ready(self) -> bool:
        """Return whether all are in memory; asked without the lock, so that ``acquire`` may know better."""
        if self.contents:
            return self.registry.holds(self.contents)
        return all(entry.resident is not None for entry in self.entries)

    def acquire(self) -> bool:
        """Take the adapters if all of them are in memory; return whether the request has them."""
        return bool(self.residents) or (self.is_ready() and self.registry.acquire(self))

    def release(self) -> None:
        """Give the adapters back for as long as the request does not run."""
        self.registry.release(self)

    def close(self) -> None:
        """Give the adapters back, or stop waiting for them; calling it again does nothing."""
        self.registry.close_lease(self)
