"""The memory of adapters: a bounded number of contents; the least recently used is evicted first."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
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
        self.residents: OrderedDict[str, Resident] = OrderedDict()
        """By id, the least recently acquired or released first."""
        self.coming: dict[Entry, int] = {}  # being loaded or about to be, with their bytes as far as known
        self.gone: list[Resident] = []  # evicted; the loader drops them, so that no step waits for the release
        self.changes = 0
        self.evictions = 0
        self.loads = 0
        self.load_seconds = 0.0
        self._nbytes = 0  # of all residents
        self._claimed: set[Resident] = set()  # those that may be held or pinned, so that no step looks at all
        self._waiters = 0
        self._is_interrupted = False

    # ---------------------------------------------------------------------------------------------------- places ---

    def put(self, resident: Resident) -> None:
        """Add contents that have just been loaded."""
        self.residents[resident.id] = resident
        self._nbytes += resident.nbytes

    def touch(self, resident: Resident) -> None:
        """Mark ``resident`` as the most recently used."""
        self.residents.move_to_end(resident.id)

    def claim(self, resident: Resident) -> None:
        """Note that a request has begun to hold ``resident``, or that one of its names was pinned."""
        self._claimed.add(resident)

    def attach(self, entry: Entry, resident: Resident) -> None:
        """Bind the name ``entry`` to ``resident``."""
        if entry.resident is not resident:
            self.detach(entry)
        entry.resident, entry.id = resident, resident.id
        entry.rank, entry.nbytes, entry.invocation = resident.rank, resident.nbytes, resident.invocation
        resident.entries.add(entry)
        if entry.is_pinned:
            self.claim(resident)

    def detach(self, entry: Entry) -> None:
        """Unbind a name from its contents, which are dropped at once if no other name or request uses them."""
        resident, entry.resident = entry.resident, None
        if resident is not None:
            resident.entries.discard(entry)
            self.forget(resident)

    def forget(self, resident: Resident) -> None:
        """Drop contents that no name means and no request uses."""
        if not (resident.entries or self._is_held(resident)) and self.residents.get(resident.id) is resident:
            self._drop(resident)

    def _drop(self, resident: Resident) -> None:
        del self.residents[resident.id]
        self._nbytes -= resident.nbytes
        self._claimed.discard(resident)

    def held(self) -> set[Resident]:
        """Return the residents that cannot be evicted."""
        claimed = self._claimed
        self._claimed = {one for one in claimed if one.references or one.promised or one.is_pinned}
        return {resident for resident in self._claimed if self._is_held(resident)}

    @staticmethod
    def _is_held(resident: Resident) -> bool:
        """Return whether contents must stay: a request uses them, only a preempted request still has them, or they
        are pinned."""
        is_last = bool(resident.promised) and not resident.entries
        return bool(resident.references) or is_last or resident.is_pinned

    def pinned(self) -> set[Resident]:
        """Return the pinned residents, which are never evicted."""
        return {resident for resident in self._claimed if resident.is_pinned}

    def room(self, kept: Iterable[Resident]) -> tuple[int, float]:
        """Return the free places and bytes if only ``kept`` and the adapters being loaded stay."""
        kept = list(kept)
        return self._left(len(kept), sum(resident.nbytes for resident in kept))

    def _left(self, count: int, nbytes: int) -> tuple[int, float]:
        places = self.most - count - len(self.coming)
        if self.budget is None:
            return places, float("inf")
        return places, self.budget - nbytes - sum(self.coming.values())

    def make_room(self, places: int, nbytes: int, is_kept: Callable[[Resident], bool]) -> bool:
        """Evict until ``places`` more contents with ``nbytes`` in total fit; return whether they do.

        is_kept: selects unused residents that stay. Nothing is evicted if that would not be enough.
        """
        have, spare = self._left(len(self.residents), self._nbytes)
        leaving: list[Resident] = []
        oldest = iter(self.residents.values())
        while (have < places or spare < nbytes) and (resident := next(oldest, None)) is not None:
            if not (self._is_held(resident) or is_kept(resident)):
                leaving.append(resident)
                have, spare = have + 1, spare + resident.nbytes
        if have < places or spare < nbytes:
            return False
        for resident in leaving:
            self._evict(resident)
        return True

    def _evict(self, resident: Resident) -> None:
        self._drop(resident)
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
