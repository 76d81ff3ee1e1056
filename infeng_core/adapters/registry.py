"""The registry: names to adapters, and what happens between a name and a batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, KeysView, Sequence
from typing import Any

from infeng_core.adapters.cache import AdapterCache
from infeng_core.adapters.loading import Loading, Observe, Place, Read
from infeng_core.adapters.names import check_name, check_source
from infeng_core.adapters.prefetch import prefetch
from infeng_core.adapters.records import AdapterInfo, Entry, Resident
from infeng_core.adapters.reference import AdapterReference, check_combination
from infeng_core.errors import AdapterError, InfengError, RequestError, unknown_key_remedy
from infeng_core.log import get_logger

_log = get_logger(__name__)

Spec = str | tuple[tuple[str, float], ...]
"""A name, or names with weights that combine: ``Request.adapter``."""


class Registry:
    """Adapters of one engine. Any thread may call any method; none waits for a step, and no step for a load.

    A name means an ``Entry``; its contents, when in memory, are a ``Resident``, found by content hash. A request holds
    entries while it waits and residents while it runs: it uses the contents that its names had when it started.
    """

    def __init__(
        self,
        read: Read,
        place: Place,
        *,
        most: int,
        budget: int | None,
        base: frozenset[str] = frozenset(),
        max_stacked_rank: int = 1024,
        load_timeout: float = 60.0,
        observe: Observe = lambda change, info: None,
    ) -> None:
        """Hold at most ``most`` adapters of together ``budget`` bytes (None: any) in memory.

        read, place: called on loading threads, place on one at a time. base: names that mean the base model.
        max_stacked_rank: of all adapters of a request. load_timeout: seconds that reading an adapter may take.
        observe: is told of what happens to adapters.
        """
        self._base = base
        self._max_stacked_rank = max_stacked_rank
        self._entries: dict[str, Entry] = {}
        self._cache = AdapterCache(most, budget)
        self._observe = observe
        self._loading = Loading(self._cache, read, place, self._fail_waiting, load_timeout, observe)
        self.failed: deque[AdapterReference] = deque()
        """References that got an error while they waited; the engine takes them."""

    # --------------------------------------------------------------------------------------------------- by name ---

    def add(self, name: str, source: Any, *, scale: float = 1.0, pin: bool = False) -> None:
        """Give an adapter a name. Nothing is read before its first use, unless it is pinned: then it is loaded now.

        Raises AdapterError for a name or a source that cannot be, ResourceError where a pinned one does not fit.
        """
        name = check_name(name, self._base)
        text, scale = check_source(name, source, scale)
        with self._cache.lock:
            if self._cache.most == 0:
                raise AdapterError(f"adapter {name}", "adapters.max_resident is 0", "set it to how many may be loaded")
            if name in self._entries:
                why = "there is an adapter of that name"
                raise AdapterError(f"adapter {name}", why, "unload it first, or reload it if its files have changed")
            entry = self._entries[name] = Entry(name, text, scale)
        if not pin:
            return
        try:
            self._loading.now(entry, pin=True)
        except BaseException:
            with self._cache.lock:
                if self._entries.get(name) is entry:
                    self._forget(entry)
            raise

    def remove(self, name: str) -> None:
        """Unload: nobody can name it from now on; requests that have named it are served."""
        with self._cache.lock:
            entry = self._find(name)
            self._forget(entry)
            info = entry.info(is_loading=False)
        _log.info("adapter unloaded", name=name)
        self._observe("unloaded", info)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.name]
        entry.is_gone, entry.is_pinned = True, False
        self._retire(entry)
        self._cache.notify()

    def pin(self, name: str, pinned: bool = True) -> None:
        """Load an adapter if it is not in memory and keep it there, or let it leave again."""
        with self._cache.lock:
            entry = self._find(name)
            if not pinned or entry.resident is not None:
                entry.is_pinned = pinned
                self._cache.notify()
                return
        self._loading.now(entry, pin=True)

    def reload(self, name: str) -> None:
        """Read an adapter's files again; requests that run finish on what they started with.

        The old contents serve until the new ones are in memory, and stay if those cannot be loaded: then the error is
        raised. An adapter that is not in memory is read at its next use.
        """
        with self._cache.lock:
            entry = self._find(name)
            if entry.resident is None and entry not in self._cache.coming:
                entry.id = None
                return
        self._loading.now(entry, is_reload=True)

    def infos(self) -> list[AdapterInfo]:
        """Return what is known of every name, in the order in which they came."""
        with self._cache.lock:
            return [entry.info(is_loading=entry in self._cache.coming) for entry in self._entries.values()]

    def info(self, name: str) -> AdapterInfo:
        """Return what is known of one name; raises AdapterError where there is no such adapter."""
        with self._cache.lock:
            entry = self._find(name)
            return entry.info(is_loading=entry in self._cache.coming)

    def names(self) -> KeysView[str]:
        """Return a view of the names, in the order in which they came."""
        return self._entries.keys()

    def _find(self, name: str) -> Entry:
        if not isinstance(name, str):
            raise AdapterError("adapter", f"its name is a {type(name).__name__}, not a text", "give a name")
        entry = self._entries.get(name)
        if entry is None:
            raise AdapterError(f"adapter {name!r}", "there is none of that name", self._known(name))
        return entry

    def _known(self, name: str) -> str:
        return unknown_key_remedy(name, self._entries) if self._entries else "load it with engine.adapters.load"

    # ------------------------------------------------------------------------------------------------ by request ---

    def refer(self, spec: Spec) -> AdapterReference:
        """Return a request's claim on its adapters; raises RequestError for what can be seen to be wrong now."""
        with self._cache.lock:
            reference = self._claim(spec)
            for entry in reference.entries:
                entry.waiting.add(reference)
            return reference

    def check(self, spec: Spec) -> None:
        """Raise the RequestError that ``refer`` would raise."""
        with self._cache.lock:
            self._claim(spec)

    def try_out(self, spec: Spec | None) -> None:
        """Raise what a request with these adapters would meet before it runs; they are read if they are not in memory.

        RequestError, AdapterError or ResourceError; blocks meanwhile.
        """
        if spec is None:
            return
        self.check(spec)
        found: list[tuple[str, Resident, float]] = []
        for name, weight in ((spec, 1.0),) if isinstance(spec, str) else spec:
            with self._cache.lock:
                entry = self._find(name)
                resident = entry.resident
            if resident is None:
                self._loading.now(entry)
                resident = entry.resident
            if resident is not None:
                found.append((name, resident, weight))
        check_combination(found, self._max_stacked_rank)

    def _claim(self, spec: Spec) -> AdapterReference:
        pairs = ((spec, 1.0),) if isinstance(spec, str) else spec
        unknown = next((name for name, _ in pairs if name not in self._entries), None)
        if unknown is not None:
            raise RequestError(f"adapter {unknown!r}", "no adapter of that name is loaded", self._known(unknown))
        if len(pairs) > self._cache.most:
            why = f"adapters.max_resident is {self._cache.most}"
            raise RequestError(f"{len(pairs)} adapters", why, "name fewer, or raise it")
        reference = AdapterReference(
            self, tuple(self._entries[name] for name, _ in pairs), tuple(weight for _, weight in pairs)
        )
        self._check(reference)
        return reference

    def holds(self, contents: Iterable[str]) -> bool:
        """Return whether contents are in memory, by their ids."""
        return all(id_ in self._cache.residents for id_ in contents)

    def acquire(self, reference: AdapterReference) -> bool:
        """Give a request its adapters if all are in memory; one whose adapters do not go together fails."""
        cache = self._cache
        with cache.lock:
            found = (
                map(cache.residents.get, reference.contents)
                if reference.contents
                else (e.resident for e in reference.entries)
            )
            residents = tuple(resident for resident in found if resident is not None)
            if reference.error is not None or reference.is_closed or len(residents) < len(reference.entries):
                return False
            try:
                self._check(reference)
            except RequestError as error:
                self._fail(reference, error)
                return False
            for resident in residents:
                resident.references.add(reference)
                resident.promised.discard(reference)
                cache.touch(resident)
            reference.contents = tuple(resident.id for resident in residents)
            reference.rows = tuple((r.handle, weight) for r, weight in zip(residents, reference.weights, strict=True))
            reference.residents = residents  # the last: from here on it has them
            self._stop_waiting(reference)
            return True

    def release(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for now; it waits for the same contents."""
        with self._cache.lock:
            if reference.residents:
                for resident in reference.residents:
                    resident.promised.add(reference)
                for entry in reference.entries:
                    entry.waiting.add(reference)
                self._take_back(reference)

    def close_reference(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for good, or forget that it waits."""
        with self._cache.lock:
            if reference.is_closed:
                return
            reference.is_closed, reference.owner = True, None
            self._take_back(reference)
            self._stop_waiting(reference)

    def prefetch(self, references: Sequence[AdapterReference]) -> int:
        """Begin to load what requests that wait need, the first of ``references`` before the others (prefetch.py).

        Returns how many of them do not wait for others to end: those behind lack room.
        """
        with self._cache.lock:
            return prefetch(self._cache, self._loading, references, self._fail)

    def _take_back(self, reference: AdapterReference) -> None:
        reference.residents, reference.rows = (), ()
        for resident in [self._cache.residents[id_] for id_ in reference.contents if id_ in self._cache.residents]:
            resident.references.discard(reference)
            if reference.is_closed:
                resident.promised.discard(reference)
            self._cache.touch(resident)
            self._cache.forget(resident)
        self._cache.notify()

    def _check(self, reference: AdapterReference) -> None:
        if not reference.contents:
            known = [
                (e.name, e.resident, w) for e, w in zip(reference.entries, reference.weights, strict=True) if e.resident
            ]
            check_combination(known, self._max_stacked_rank)

    def _fail_waiting(self, entry: Entry, error: InfengError) -> None:
        for reference in list(entry.waiting):
            if not (reference.contents and reference.is_ready()):  # what it goes on with is here
                self._fail(reference, error)

    def _fail(self, reference: AdapterReference, error: InfengError) -> None:
        reference.error = error
        self._stop_waiting(reference)
        self.failed.append(reference)
        self._cache.notify()

    def _stop_waiting(self, reference: AdapterReference) -> None:
        for entry in reference.entries:
            entry.waiting.discard(reference)
            self._retire(entry)

    def _retire(self, entry: Entry) -> None:
        """Part an unloaded name from its contents once nobody waits for them."""
        if entry.is_gone and not entry.waiting:
            self._cache.detach(entry)

    # ----------------------------------------------------------------------------------------------- by the loop ---

    @property
    def changes(self) -> int:
        """Counts whatever may let a request start that could not before."""
        return self._cache.changes

    @property
    def evictions(self) -> int:
        """Contents that have left the memory for others."""
        return self._cache.evictions

    def notify(self) -> None:
        """Wake a step that waits for an adapter: there may be something else to do."""
        with self._cache.lock:
            self._cache.notify()

    def wait(self, mark: int, timeout: float = math.inf) -> bool:
        """Sleep until ``changes`` is not ``mark``; return False at once if no load is under way that could do that.

        After ``timeout`` seconds it returns True: there may be something else to do.

        Raises KernelError where ``interrupt`` is called meanwhile.
        """
        return self._cache.wait(mark, timeout)

    def interrupt(self) -> None:
        """Make a step that waits for an adapter raise KernelError."""
        self._cache.interrupt()

    def close(self) -> None:
        """Forget everything; loads that are under way come to nothing."""
        self._loading.close()
        with self._cache.lock:
            for entry in self._entries.values():
                entry.is_gone = True
                self._cache.detach(entry)
            self._entries.clear()
            self._cache.gone.clear()
