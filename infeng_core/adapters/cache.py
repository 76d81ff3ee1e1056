"""The memory of adapters: a bounded number of contents; the least recently used is evicted first."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable

from infeng_core.adapters.records import Entry, Resident
from infeng_core.errors import KernelError
from infeng_core.log import get_logger

_log = get_logger(__name__)


class AdapterCache:
    """Residents by content hash, at most ``most`` of them and ``budget`` bytes.

    An adapter that is being loaded counts already, so the bounds always hold. Residents that are referenced or pinned
    are never evicted. Callers hold ``lock`` to read or change anything here.
    """

    def __init__(self, most: int, budget: int | None) -> None:
        """Start empty; a budget of None does not bound the bytes."""
        self.lock = threading.RLock()  # acquired explicitly: Ctrl-C inside a condition's `with` would leave it locked
        self.news = threading.Condition(self.lock)
        self.most = most
        self.budget = budget
        self.residents: dict[str, Resident] = {}
        self.coming: dict[Entry, int] = {}  # being loaded or about to be, with their bytes as far as known
        self.gone: list[Resident] = []  # evicted; the loader drops them, so that no step waits for the release
        self.changes = 0
        self.evictions = 0
        self._uses = 0
        self._waiters = 0
        self._is_interrupted = False

    # ---------------------------------------------------------------------------------------------------- places ---

    def put(self, resident: Resident) -> None:
        """Add contents that have just been loaded."""
        self.residents[resident.id] = resident
        self.touch(resident)

    def touch(self, resident: Resident) -> None:
        """Mark ``resident`` as the most recently used."""
        self._uses += 1
        resident.used = self._uses

    def attach(self, entry: Entry, resident: Resident) -> None:
        """Bind the name ``entry`` to ``resident``."""
        if entry.resident is not resident:
            self.detach(entry)
        entry.resident, entry.id = resident, resident.id
        entry.rank, entry.nbytes, entry.invocation = resident.rank, resident.nbytes, resident.invocation
        resident.entries.add(entry)

    def detach(self, entry: Entry) -> None:
        """Unbind a name from its contents, which are dropped at once if no other name or request uses them."""
        resident, entry.resident = entry.resident, None
        if resident is not None:
            resident.entries.discard(entry)
            self.forget(resident)

    def forget(self, resident: Resident) -> None:
        """Drop contents that no name means and no request uses."""
        if not (resident.entries or self._is_held(resident)) and self.residents.get(resident.id) is resident:
            del self.residents[resident.id]

    def held(self) -> set[Resident]:
        """Return the residents that cannot be evicted."""
        return {resident for resident in self.residents.values() if self._is_held(resident)}

    @staticmethod
    def _is_held(resident: Resident) -> bool:
        """Return whether contents must stay: a request uses them, only a preempted request still has them, or they
        are pinned."""
        is_last = bool(resident.promised) and not resident.entries
        return bool(resident.references) or is_last or resident.is_pinned

    def pinned(self) -> set[Resident]:
        """Return the pinned residents, which are never evicted."""
        return {resident for resident in self.residents.values() if resident.is_pinned}

    def room(self, kept: Iterable[Resident]) -> tuple[int, float]:
        """Return the free places and bytes if only ``kept`` and the adapters being loaded stay."""
        kept = list(kept)
        places = self.most - len(kept) - len(self.coming)
        if self.budget is None:
            return places, float("inf")
        return places, self.budget - sum(resident.nbytes for resident in kept) - sum(self.coming.values())

    def make_room(self, places: int, nbytes: int, is_kept: Callable[[Resident], bool]) -> bool:
        """Evict until ``places`` more contents with ``nbytes`` in total fit; return whether they do.

        is_kept: selects unused residents that stay. Nothing is evicted if that would not be enough.
        """
        have, spare = self.room(self.residents.values())
        if have >= places and spare >= nbytes:
            return True
        victims = [r for r in self.residents.values() if not (self._is_held(r) or is_kept(r))]
        victims.sort(key=lambda resident: resident.used, reverse=True)
        leaving: list[Resident] = []
        while (have < places or spare < nbytes) and victims:
            leaving.append(victims.pop())
            have, spare = have + 1, spare + leaving[-1].nbytes
        if have < places or spare < nbytes:
            return False
        for resident in leaving:
            self._evict(resident)
        return True

    def _evict(self, resident: Resident) -> None:
        del self.residents[resident.id]
        for entry in resident.entries:
            entry.resident = None
        self.gone.append(resident)
        self.evictions += 1
        names = ",".join(sorted(entry.name for entry in resident.entries))
        _log.info("adapter evicted", name=names, id=resident.id[:12], bytes=resident.nbytes)

    # --------------------------------------------------------------------------------------------------- changes ---

    def notify(self) -> None:
        """Wake waiting threads, because a request may now be able to start."""
        self.changes += 1
        self.news.notify_all()

    def wait(self, mark: int, timeout: float = math.inf) -> bool:
        """Sleep until ``changes`` differs from ``mark``; return False at once if no load is under way that could
        change it.

        After ``timeout`` seconds it returns True.

        Raises KernelError where ``interrupt`` is called meanwhile.
        """
        with self.lock:
            self._waiters += 1
            try:
                while self.changes == mark and self.coming and not self._is_interrupted:
                    if not self.news.wait(None if timeout == math.inf else max(0.0, timeout)):
                        return True
                if self._is_interrupted:
                    raise KernelError("step", "interrupted while it waited for an adapter", "run it again")
            finally:
                self._waiters -= 1
                self._is_interrupted = False
            return self.changes != mark

    def interrupt(self) -> None:
        """Wake a thread that waits; it raises KernelError."""
        with self.lock:
            self._is_interrupted = self._waiters > 0
            self.news.notify_all()
