"""The registry's records of names and of the contents behind them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from infeng_core.record import Record

if TYPE_CHECKING:
    from infeng_core.formats.adapters.packed import PackedAdapter

State = Literal["registered", "loading", "resident"]
"""``registered``: no contents are in memory; ``loading``: it is being read or queued."""


AdapterChange = Literal["loaded", "reloaded", "failed", "unloaded"]
"""The events of an adapter."""


class AdapterInfo(Record):
    """An adapter as ``Engine.adapters`` shows it."""

    name: str
    source: str
    scale: float
    state: State
    id: str | None
    """Content hash; None before the first read. Names with equal ids share their memory."""
    rank: int | None
    """The largest rank of one projection; None before the first read."""
    bytes: int | None
    """Bytes in memory while resident; None before the first read."""
    references: int
    """Requests that run with these contents now."""
    waiting: int
    """Requests that have named it and have not started."""
    pinned: bool
    loads: int
    """Number of loads into memory."""
    load_seconds: float | None
    """Seconds of the latest load, from the first byte read until it was usable (swap latency)."""
    total_load_seconds: float
    """Seconds of all of its loads."""
    loaded: float
    """When the latest load became usable, in seconds of ``time.perf_counter``; 0 before the first load."""
    error: str | None
    """The error of the latest load; None if it succeeded."""
    invocation: tuple[int, ...] = ()
    """aLoRA: the tokens from whose last occurrence in a prompt on it acts. () for one that acts on all tokens, and
    before the first read."""


class AdapterTotals(Record):
    """All adapters of an engine together."""

    names: int
    """Named ones, and those of ``adapters.directory`` that were asked for."""
    resident: int
    """Names whose contents are in memory."""
    loads: int
    """Loads into memory since the start."""
    load_seconds: float
    """Seconds of all of these."""


@dataclass(slots=True, eq=False)
class Resident:
    """Contents in the backend's memory, shared by the names that mean them."""

    id: str
    handle: Any = field(repr=False)  # backend.AdapterHandle
    nbytes: int
    rank: int
    stacked_rank: int
    is_whole: bool  # has DoRA, biases, trained tokens or saved modules: its weight can only be 1
    saves_modules: bool
    reach: float  # the largest magnitude that it may add to a weight of the base
    invocation: tuple[int, ...] = ()  # tokens from which on it acts (aLoRA); () on all
    trained_tokens: frozenset[int] = frozenset()  # whose rows of embeddings and head it replaces
    entries: set[Entry] = field(default_factory=set, repr=False)
    references: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    """References of running requests. A weak set, so that an ill-timed Ctrl-C cannot break the count."""
    promised: WeakSet[Any] = field(default_factory=WeakSet, repr=False)
    """Preempted requests that will continue with these contents."""

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
            packed.invocation,
            frozenset(packed.trained_tokens),
        )


@dataclass(slots=True, eq=False)
class Entry:
    """A name and its present contents. Requests hold it from submission on, so it outlives its unloading."""

    name: str
    source: str
    scale: float
    is_found: bool = False  # of adapters.directory: known as long as it is there
    is_pinned: bool = False
    is_gone: bool = False  # unloaded: new requests cannot name it
    resident: Resident | None = None
    id: str | None = None  # content hash of the first read, or of the latest reload
    rank: int | None = None
    nbytes: int | None = None
    invocation: tuple[int, ...] = ()
    loads: int = 0
    load_seconds: float | None = None
    total_load_seconds: float = 0.0
    loaded: float = 0.0
    error: str | None = None
    _waiting: WeakSet[Any] | None = field(default=None, repr=False)  # None without any: thousands of names cost little

    @property
    def waiting(self) -> Collection[Any]:
        """References of requests that wait for it, in a weak set as in ``Resident``."""
        return () if self._waiting is None else self._waiting

    def begin_wait(self, reference: Any) -> None:
        """Add a reference that waits."""
        if self._waiting is None:
            self._waiting = WeakSet()
        self._waiting.add(reference)

    def end_wait(self, reference: Any) -> None:
        """Remove a reference, if it waits."""
        if self._waiting is not None:
            self._waiting.discard(reference)
            if not self._waiting:
                self._waiting = None

    def info(self, *, is_loading: bool) -> AdapterInfo:
        """Return the public record of this name."""
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
            invocation=self.invocation,
        )
