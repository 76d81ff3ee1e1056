"""What one request needs of adapters, from its submission to its end, and which may answer it together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from infeng_core.adapters.records import Entry, Resident
from infeng_core.errors import InfengError, RequestError
from infeng_core.formats.adapters.bounds import MAX_MAGNITUDE


class Holder(Protocol):
    """What keeps the adapters of references: the registry."""

    @property
    def changes(self) -> int:
        """Counts whatever may let a request start that could not before."""

    def holds(self, contents: Iterable[str]) -> bool:
        """Return whether contents are in memory, by their ids."""

    def acquire(self, reference: AdapterReference) -> bool:
        """Give a request its adapters if all are in memory."""

    def release(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for now."""

    def close_reference(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for good."""

    def prefetch(self, references: Sequence[AdapterReference]) -> int:
        """Begin to load what requests that wait need; return how many of the first do not lack room."""


class AdapterReference:
    """The adapters of one request. A scheduler asks for them with ``acquire`` and gives them back with ``close``.

    Until then they may come and go; in between they stay where they are, whatever happens to their names. A request
    that is preempted gives them back with ``release``: they may leave until it acquires them again, and then it has the
    same contents as before, or an error.
    """

    __slots__ = (
        *("contents", "entries", "error", "is_closed", "owner", "registry", "residents", "rows", "weights"),
        "__weakref__",
    )

    def __init__(self, registry: Holder, entries: tuple[Entry, ...], weights: tuple[float, ...]) -> None:
        """Made by ``Registry.refer``."""
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

    @property
    def uses(self) -> tuple[object, ...]:
        """Equal for requests that use the same adapters with the same weights."""
        return self.entries, self.weights, self.contents

    def known(self) -> tuple[str, ...] | None:
        """Return the content ids that ``acquire`` would give now; None where not all are known."""
        found = self.contents or tuple(e.resident.id for e in self.entries if e.resident is not None)
        return found if len(found) == len(self.entries) else None

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
        self.registry.close_reference(self)


def check_combination(parts: Sequence[tuple[str, Resident, float]], max_stacked_rank: int) -> None:
    """Raise RequestError unless adapters (name, contents, weight) can be used on one row.

    A weight scales the product B A. DoRA also rescales what the base gives, biases shift it and saved modules replace
    it, none of which half a weight could do. max_stacked_rank: rank rows of all together that the backend has room for.
    """
    for name, resident, weight in parts:
        if resident.is_whole and weight != 1.0:
            kind = "saved modules" if resident.saves_modules else "DoRA magnitudes or biases"
            why = f"it has {kind}, so its weight can only be 1, not {weight:g}"
            raise RequestError(f"adapter {name}", why, "leave the weight out")
        if not abs(weight) * max(1.0, resident.reach) <= MAX_MAGNITUDE:
            why = f"its weight {weight:g} makes it add numbers whose squares float32 does not hold"
            raise RequestError(f"adapter {name}", why, "give a smaller one")
    saving = [name for name, resident, _ in parts if resident.saves_modules]
    if len(saving) > 1:
        why = "each replaces modules of the base, and only one can"
        raise RequestError(f"adapters {' and '.join(saving)}", why, "use one of them")
    stacked = sum(resident.stacked_rank for _, resident, _ in parts)
    if stacked > max_stacked_rank:
        names = ", ".join(name for name, _, _ in parts)
        why = f"their stacked ranks add up to {stacked}, and a row has room for {max_stacked_rank}"
        raise RequestError(f"adapters {names}", why, "combine fewer, or such of lower rank")
