"""From a source to a resident, on a loading thread: read, check, pack, make room, place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from infeng_core.adapters.cache import AdapterCache
from infeng_core.adapters.loader import Loader
from infeng_core.adapters.records import AdapterChange, AdapterInfo, Entry, Resident
from infeng_core.errors import AdapterError, InfengError, ResourceError, UsageError
from infeng_core.log import get_logger

if TYPE_CHECKING:
    from concurrent.futures import Future

    from infeng_core.formats.adapters.packed import PackedAdapter

_log = get_logger(__name__)


class Read(Protocol):
    """A reader of adapters: ``formats.load_adapter`` over a model."""

    def __call__(self, source: str, /, *, scale: float) -> PackedAdapter:
        """Return packed contents; raises InfengError."""


Place = Callable[["PackedAdapter"], Any]
"""A backend's ``load_adapter``: packed contents to an AdapterHandle."""

Observe = Callable[[AdapterChange, AdapterInfo], None]
"""Tells observers of an adapter; called without the lock."""

MOST_SETTLING = 1.0
"""Seconds for which the report of one load delays the next report of the same adapter, or the engine's close."""


@dataclass(slots=True, eq=False)
class Load:
    """One load of an entry, for waiting requests or, with ``done``, for a caller."""

    entry: Entry
    done: Future[None] | None = None
    pin: bool = False
    is_reload: bool = False
    source: str | None = None  # the entry's own until it is read
    is_taken: bool = False  # the entry now means the loaded contents
    is_read: bool = False  # only placing remains, which cannot hang
    is_over: bool = False  # given up: its result is discarded

    @property
    def is_brief(self) -> bool:
        """Whether the adapter is a small engine-native one."""
        from infeng_core.formats.adapters.artifact import is_small  # a slow import, on a loading thread

        return is_small(self.source or self.entry.source)


class Loading:
    """Loads contents into the cache, for waiting requests or for a waiting caller."""

    def __init__(
        self,
        cache: AdapterCache,
        read: Read,
        place: Place,
        fail: Callable[[Entry, InfengError], None],
        timeout: float,
        observe: Observe,
        workers: int,
    ) -> None:
        """Load by ``read`` and ``place``; ``fail`` ends the requests that wait for an entry, called under the lock.

        timeout: seconds after which a load that is still reading fails. observe: called for every load, before the
        waiting caller returns. workers: as in ``Loader``.
        """
        self._cache = cache
        self._read = read
        self._place = place
        self._fail = fail
        self._observe = observe
        self._loader = Loader(self._run, self._give_up, timeout, workers)
        self._is_placing = False
        self._is_closed = False
        self._untold: set[Entry] = set()
        """Entries whose load has ended and has not been reported yet: requests that waited for it may be ahead."""
        self.kept: set[Entry] = set()
        """Entries that waiting requests will use first: they are not evicted for later requests."""

    def begin(self, entry: Entry) -> None:
        """Load for waiting requests; called under the lock, once ``entry`` has room in the cache."""
        self._cache.coming[entry] = entry.nbytes or 0
        self._loader.add(Load(entry))

    def now(self, entry: Entry, *, pin: bool = False, is_reload: bool = False, source: str | None = None) -> None:
        """Load, from ``source`` if it is given, and wait; raises the load's error. Called without the lock."""
        from concurrent.futures import Future

        done: Future[None] = Future()
        self._loader.add(Load(entry, done, pin, is_reload, source))
        done.result()

    def is_wanted(self, resident: Resident) -> bool:
        """Return whether a waiting request will use it soon."""
        return not self.kept.isdisjoint(resident.entries)

    def close(self) -> None:
        """Start no more loads and wait until the backend is idle; the results of running reads are discarded."""
        with self._cache.lock:
            self._is_closed = True
            self._cache.coming.clear()
            self._cache.notify()
            while self._is_placing:
                self._cache.news.wait()
        self.settle(None)

    def settle(self, entry: Entry | None) -> None:
        """Wait until the loads of an entry, or of all, are reported, so that reports keep their order.

        Called without the lock. After ``MOST_SETTLING`` seconds an observer's own delay is not waited for any longer.
        """
        end = time.monotonic() + MOST_SETTLING
        with self._cache.lock:
            while self._untold if entry is None else entry in self._untold:
                if (left := end - time.monotonic()) <= 0:
                    return
                self._cache.news.wait(left)

    def _run(self, load: Load) -> None:
        error: InfengError | None = None
        try:
            if load.done is not None or self._is_due(load.entry):
                self._load(load)
        except InfengError as caught:
            error = caught
        with self._cache.lock:
            is_over, load.is_read = load.is_over, True  # from here on the load cannot be given up
        if load.is_taken:
            self._tell("reloaded" if load.is_reload else "loaded", load.entry)
            with self._cache.lock:
                self._untold.discard(load.entry)
                self._cache.news.notify_all()
        elif error is not None and not (is_over or self._is_closed):
            self._tell("failed", load.entry, error)
        with self._cache.lock:
            self._end(load, error)

    def _tell(self, change: AdapterChange, entry: Entry, error: InfengError | None = None) -> None:
        with self._cache.lock:
            info = entry.info(is_loading=False)
        self._observe(change, replace(info, error=None if error is None else str(error)))

    def _give_up(self, load: Load, why: str) -> bool:
        with self._cache.lock:
            if load.is_read or load.is_over:
                return False
            remedy = "check where its files lie, or raise adapters.load_timeout"
            error = AdapterError(f"adapter {load.entry.name}", why, remedy)
            self._end(load, error)
            load.is_over = True
        self._tell("failed", load.entry, error)
        return True

    def _is_due(self, entry: Entry) -> bool:
        with self._cache.lock:
            return not self._is_closed and bool(entry.waiting) and entry.resident is None

    def _end(self, load: Load, error: InfengError | None) -> None:
        """Report the end of a load to its waiting callers, unless it was given up before. Called under the lock."""
        if load.is_over:
            return
        self._cache.coming.pop(load.entry, None)
        if error is not None:
            load.entry.error = str(error)
            is_told = load.done is not None or bool(load.entry.waiting)  # they get the error itself
            if not self._is_closed:
                (_log.info if is_told else _log.warning)("adapter not loaded", name=load.entry.name, error=str(error))
            if load.done is None:
                self._fail(load.entry, error)
        self._cache.notify()
        if load.done is not None and error is not None:
            load.done.set_exception(error)
        elif load.done is not None:
            load.done.set_result(None)

    def _load(self, load: Load) -> None:
        begin = time.perf_counter()
        cache, entry = self._cache, load.entry
        source = load.source = load.source or entry.source
        with _explained(entry, "there is no memory to read it", "it cannot be read", "check its files"):
            packed = self._read(source, scale=entry.scale)
        with cache.lock:
            while self._is_placing:  # one at a time, so that equal contents are placed once
                cache.news.wait()
            if load.is_over:
                return
            load.is_read = True
            self._check(entry, packed, load.is_reload)
            resident = cache.residents.get(packed.id)
            if resident is not None:
                self._take(load, resident, begin)
                return
            entry.nbytes = packed.nbytes
            if not self._has_room(entry, packed.nbytes, load.pin, load.is_reload):
                return
            cache.coming[entry] = packed.nbytes
            self._is_placing = True
        cache.gone.clear()
        made: Resident | None = None
        try:
            made = Resident.of(packed, self._placed(entry, packed))
        finally:
            with cache.lock:
                self._is_placing = False
                if made is not None and not self._is_closed:
                    cache.put(made)
                    self._take(load, made, begin)
                cache.news.notify_all()

    def _placed(self, entry: Entry, packed: PackedAdapter) -> Any:
        why, remedy = "the backend cannot take it", "use backend native"
        with _explained(entry, f"no {packed.nbytes} bytes are free", why, remedy):
            return self._place(packed)

    def _check(self, entry: Entry, packed: PackedAdapter, is_reload: bool) -> None:
        if self._is_closed:
            raise UsageError("engine", "it is closed", "make a new one")
        if entry.id not in (None, packed.id) and not is_reload:
            why = "its files have changed since they were first read"
            raise AdapterError(f"adapter {entry.name}", why, "reload it to use them as they are now")

    def _has_room(self, entry: Entry, nbytes: int, pin: bool, is_reload: bool) -> bool:
        """Make room if possible. Without room a request keeps waiting; a caller who pins gets an error."""
        cache = self._cache
        if is_reload:  # both versions stay until the old one is evicted, at once if it is unused
            cache.make_room(1, nbytes, lambda resident: resident is entry.resident)
            return True
        reserved = cache.coming.get(entry)
        places, more = (1, nbytes) if reserved is None else (0, nbytes - reserved)
        has_room = cache.make_room(places, more, (lambda _: False) if pin else self.is_wanted)
        if pin and not has_room:
            why = "what is in memory is in use or pinned, and it does not fit beside that"
            remedy = "try again later, or raise adapters.max_resident and adapters.memory"
            raise ResourceError(f"adapter {entry.name} ({nbytes} bytes)", why, remedy)
        return has_room

    def _take(self, load: Load, resident: Resident, begin: float) -> None:
        """Bind the name to the loaded contents, unless it was unloaded and no request waits for it."""
        cache, entry = self._cache, load.entry
        cache.coming.pop(entry, None)
        if not entry.is_gone or entry.waiting:
            cache.attach(entry, resident)
            load.is_taken, entry.source = True, load.source or entry.source
            self._untold.add(entry)
            entry.is_pinned |= load.pin and not entry.is_gone
            cache.claim(resident)
            entry.loads += 1
            entry.loaded = time.perf_counter()
            entry.load_seconds, entry.error = entry.loaded - begin, None
            entry.total_load_seconds += entry.load_seconds
            cache.loads, cache.load_seconds = cache.loads + 1, cache.load_seconds + entry.load_seconds
            text = "adapter reloaded" if load.is_reload else "adapter loaded"
            facts = {"id": resident.id[:12], "rank": resident.rank, "bytes": resident.nbytes}
            _log.info(text, name=entry.name, **facts, seconds=round(entry.load_seconds, 4))
        cache.forget(resident)
        cache.notify()  # with this load over, a waiting step might find nothing to wait for


@contextmanager
def _explained(entry: Entry, too_large: str, why: str, remedy: str) -> Iterator[None]:
    """Convert an error of reading or placing an adapter into one that names the adapter."""
    try:
        yield
    except InfengError:
        raise
    except MemoryError:
        raise ResourceError(f"adapter {entry.name}", too_large, "free some") from None
    except Exception as error:
        _log.exception("an adapter cannot be loaded", name=entry.name)
        raise AdapterError(f"adapter {entry.name}", f"{why} ({type(error).__name__}: {error})", remedy) from error
