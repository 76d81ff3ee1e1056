"""The memory of adapters: a bounded number of contents, of which the one that was used longest ago leaves first."""

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

    What is being loaded has its place already, so the bounds hold at every moment. Residents that are referenced or
    pinned never leave. Whoever reads or changes anything here holds ``lock``.
    """

    def __init__(self, most: int, budget: int | None) -> None:
        """Start empty; a budget of None does not bound the bytes."""
        self.lock = threading.RLock()  # taken by itself: Ctrl-C within a condition's `with` would keep it taken
        self.news = threading.Condition(self.lock)
        self.most = most
        self.budget = budget
        self.residents: dict[str, Resident] = {}
        self.coming: dict[Entry, int] = {}  # being loaded or about to be: bytes as far as known
        self.gone: list[Resident] = []  # evicted; the loader lets go of them, so that no step pays for it
        self.changes = 0
        self.evictions = 0
        self._uses = 0
        self._waiters = 0
        self._is_interrupted = False

    # ---------------------------------------------------------------------------------------------------- places ---

    def put(self, resident: Resident) -> None:
        """Take in what has just been loaded."""
        self.residents[resident.id] = resident
        self.touch(resident)

    def touch(self, resident: Resident) -> None:
        """Note that ``resident`` is in use now."""
        self._uses += 1
        resident.used = self._uses

    def attach(self, entry: Entry, resident: Resident) -> None:
        """Let a name mean ``resident`` from now on."""
        if entry.resident is not resident:
            self.detach(entry)
        entry.resident, entry.id = resident, resident.id
        entry.rank, entry.nbytes = resident.rank, resident.nbytes
        resident.entries.add(entry)

    def detach(self, entry: Entry) -> None:
        """Part a name from its contents, which leave at once if nobody else means or uses them."""
        resident, entry.resident = entry.resident, None
        if resident is not None:
            resident.entries.discard(entry)
            self.forget(resident)

    def forget(self, resident: Resident) -> None:
        """Let contents go that no name means and no request uses."""
        if not (resident.entries or self._is_held(resident)) and self.residents.get(resident.id) is resident:
            del self.residents[resident.id]

    def held(self) -> set[Resident]:
        """Return the residents that cannot leave."""
        return {resident for resident in self.residents.values() if self._is_held(resident)}

    @staticmethod
    def _is_held(resident: Resident) -> bool:
        """Whether a request uses contents, or will and nobody could read them again, or a name is pinned."""
        is_last = bool(resident.promised) and not resident.entries
        return bool(resident.references) or is_last or resident.is_pinned

    def pinned(self) -> set[Resident]:
        """Return the residents that never leave."""
        return {resident for resident in self.residents.values() if resident.is_pinned}

    def room(self, kept: Iterable[Resident]) -> tuple[int, float]:
        """Return the places and bytes that remain when only ``kept`` and what is being loaded stays."""
        kept = list(kept)
        places = self.most - len(kept) - len(self.coming)
        if self.budget is None:
            return places, float("inf")
        return places, self.budget - sum(resident.nbytes for resident in kept) - sum(self.coming.values())

    def make_room(self, places: int, nbytes: int, is_kept: Callable[[Resident], bool]) -> bool:
        """Evict until ``places`` more contents of together ``nbytes`` fit; return whether they do.

        is_kept: who stays though nothing uses it. Nobody leaves if that would not be enough.
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
        """Tell whoever waits that a request may start now that could not before."""
        self.changes += 1
        self.news.notify_all()

    def wait(self, mark: int, timeout: float = math.inf) -> bool:
        """Sleep until ``changes`` is not ``mark``; return False at once if no load is under way that could do that.

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
