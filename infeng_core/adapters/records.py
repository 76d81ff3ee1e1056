"""What the registry knows of a name, and of the bytes that lie behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from infeng_core.record import Record

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter

State = Literal["registered", "loading", "resident"]
"""``registered``: nothing of it is in memory; ``loading``: it is being read or waits for its turn."""


AdapterChange = Literal["loaded", "reloaded", "failed", "unloaded"]
"""What can happen to an adapter."""


class AdapterInfo(Record):
    """An adapter as ``Engine.adapters`` shows it."""

    name: str
    source: str
    scale: float
    state: State
    id: str | None
    """Content hash; None until it has been read once. Names with equal ids share their memory."""
    rank: int | None
    """The largest rank of one projection; None until it has been read once."""
    bytes: int | None
    """Memory that it takes while resident; None until it has been read once."""
    references: int
    """Requests that run with these bytes now."""
    waiting: int
    """Requests that have named it and have not started."""
    pinned: bool
    loads: int
    """How often it was brought into memory."""
    load_seconds: float | None
    """Of the latest load, from its first byte read until it could be used (swap latency)."""
    total_load_seconds: float
    """Of all of its loads."""
    loaded: float
    """When the latest one could be used, in seconds of ``time.perf_counter``; 0 before there was one."""
    error: str | None
    """Why the latest load failed; None if it did not."""


@dataclass(slots=True, eq=False)
class Resident:
    """Contents in the backend's memory, whatever the names that mean them."""

    id: str
    handle: Any = field(repr=False)  # backend.AdapterHandle
    nbytes: int
    rank: int
    stacked_rank: int
    is_whole: bool  # DoRA, biases or saved modules: its weight can only be 1
    saves_modules: bool
    reach: float  # the largest number that it may add to a weight of the base
    entries: set[Entry] = field(default_factory=set, repr=False)
    references: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    """Of requests that run. A set, and weak, so that nothing is counted wrong when Ctrl-C comes in between."""
    promised: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    """Requests that were preempted and will go on with these bytes."""
    used: int = 0  # the order in which residents were last taken or given back

    @property
    def is_pinned(self) -> bool:
        """Whether one of its names is pinned."""
        return any(entry.is_pinned for entry in self.entries)

    @staticmethod
    def of(packed: PackedAdapter, handle: Any) -> Resident:
        """Return the record of ``packed`` after a backend has taken it."""
        ranks = [part.rank for tensor in packed.tensors.values() for part in tensor.parts]
        ranks += [packed.embedding.rank] if packed.embedding is not None else []
        return Resident(
            packed.id,
            handle,
            handle.nbytes,
            max(ranks, default=0),
            packed.stacked_rank,
            packed.is_whole,
            packed.saves_modules,
            packed.reach,
        )


@dataclass(slots=True, eq=False)
class Entry:
    """A name and what it means now. Requests hold it from their submission on, so it outlives its unloading."""

    name: str
    source: str
    scale: float
    is_pinned: bool = False
    is_gone: bool = False  # unloaded: no new request can name it
    resident: Resident | None = None
    id: str | None = None  # content hash of what was read first, or at the latest reload
    rank: int | None = None
    nbytes: int | None = None
    loads: int = 0
    load_seconds: float | None = None
    total_load_seconds: float = 0.0
    loaded: float = 0.0
    error: str | None = None
    waiting: WeakSet[Any] = field(default_factory=WeakSet, repr=False)  # of AdapterReference, as in Resident

    def info(self, *, is_loading: bool) -> AdapterInfo:
        """Return what a user sees."""
        resident = self.resident
        return AdapterInfo(
            name=self.name,
            source=self.source,
            scale=self.scale,
            state="resident" if resident else "loading" if is_loading else "registered",
            id=self.id,
            rank=self.rank,
            bytes=self.nbytes,
            references=len(resident.references) if resident else 0,
            waiting=len(self.waiting),
            pinned=self.is_pinned,
            loads=self.loads,
            load_seconds=self.load_seconds,
            total_load_seconds=self.total_load_seconds,
            loaded=self.loaded,
            error=self.error,
        )
