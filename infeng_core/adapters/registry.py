"""The registry: maps names to adapters, and manages their contents for requests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, KeysView, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.adapters.cache import AdapterCache
from infeng_core.adapters.loading import Loading, Observe, Place, Read
from infeng_core.adapters.names import check_name, check_source
from infeng_core.adapters.prefetch import prefetch
from infeng_core.adapters.records import AdapterInfo, AdapterTotals, Entry, Resident
from infeng_core.adapters.reference import AdapterReference, check_combination
from infeng_core.errors import AdapterError, InfengError, RequestError, unknown_key_remedy
from infeng_core.log import get_logger

if TYPE_CHECKING:
    from infeng_core.adapters.directory import AdapterDirectory

_log = get_logger(__name__)

MOST_SUGGESTED = 64
"""Names up to which the error of an unknown name looks for one that may have been meant."""

Spec = str | tuple[tuple[str, float], ...]
"""A name, or names with weights that combine: ``Request.adapter``."""


class Registry:
    """Adapters of one engine. Any thread may call any method; calls do not wait for steps, nor steps for loads.

    A name is an ``Entry``; its contents, when in memory, are a ``Resident``, found by content hash. A request holds
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
        directory: AdapterDirectory | None = None,
        max_stacked_rank: int = 1024,
        load_timeout: float = 60.0,
        observe: Observe = lambda change, info: None,
        workers: int = 0,
    ) -> None:
        """Hold at most ``most`` adapters with ``budget`` bytes in total (None: no limit) in memory.

        read, place: called on loading threads, place on one at a time. base: names that mean the base model.
        directory: adapters that are known without having been added.
        max_stacked_rank: of all adapters of a request. load_timeout: seconds that reading an adapter may take.
        observe: called with the events of adapters. workers: the niceness of the batch's.
        """
        self._base = base
        self._directory = directory
        self._max_stacked_rank = max_stacked_rank
        self._entries: dict[str, Entry] = {}
        self._cache = AdapterCache(most, budget)
        self._observe = observe
        self._loading = Loading(self._cache, read, place, self._fail_waiting, load_timeout, observe, workers)
        self.failed: deque[AdapterReference] = deque()
        """References that got an error while they waited; the engine collects them."""

    # --------------------------------------------------------------------------------------------------- by name ---

    def add(self, name: str, source: Any, *, scale: float = 1.0, pin: bool = False) -> None:
        """Name an adapter. It is read at its first use, or now if it is pinned.

        Raises AdapterError for an invalid name or source, ResourceError if a pinned one does not fit.
        """
        name = check_name(name, self._base)
        text, scale = check_source(name, source, scale)
        if self.is_available(name):
            raise AdapterError(f"adapter {name}", "adapters.directory has one of that name", "choose another name")
        with self._cache.lock:
            if self._cache.most == 0:
                raise AdapterError(f"adapter {name}", "adapters.max_resident is 0", "set it to how many may be loaded")
            if name in self._entries:
                why = "there is an adapter of that name"
                raise AdapterError(f"adapter {name}", why, "choose another name, or unload or reload that one")
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
        """Unload a name: new requests cannot use it; requests that already do are served.

        An adapter of the directory stays known, and its next request reads it as if it were new.
        """
        with self._cache.lock:
            entry = self._find(name)
            self._forget(entry)
            info = entry.info(is_loading=False)
        _log.info("adapter unloaded", name=name)
        self._loading.settle(entry)
        self._observe("unloaded", info)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.name]
        entry.is_gone, entry.is_pinned = True, False
        self._retire(entry)
        self._cache.notify()

    def pin(self, name: str, pinned: bool = True) -> None:
        """Load an adapter if it is not in memory and keep it there, or let it be evicted again."""
        self._look_up([name])
        with self._cache.lock:
            entry = self._find(name)
            if not pinned or entry.resident is not None:
                entry.is_pinned = pinned
                if pinned and entry.resident is not None:
                    self._cache.claim(entry.resident)
                self._cache.notify()
                return
        self._loading.now(entry, pin=True)

    def reload(self, name: str, source: Any = None) -> None:
        """Read an adapter's files again, or those of ``source`` from now on; running requests finish with the old ones.

        The old contents serve until the new ones are in memory. If the new ones cannot be loaded, the old ones stay
        and the error is raised. Without ``source`` an adapter that is not in memory is read at its next use.
        """
        new = None if source is None else check_source(name, source, 1.0)[0]
        if new is not None and self.is_available(name):
            raise AdapterError(f"adapter {name}", "adapters.directory has its files", "put the new ones there")
        self._look_up([name])
        with self._cache.lock:
            entry = self._find(name)
            if new is None and entry.resident is None and entry not in self._cache.coming:
                entry.id = None
                return
        self._loading.now(entry, is_reload=True, source=new)

    def infos(self, most: int | None = None) -> list[AdapterInfo]:
        """Return the state of the first ``most`` names, or of all, in the order of their loading.

        Adapters of the directory are among them once they were asked for.
        """
        with self._cache.lock:
            entries = islice(self._entries.values(), most)
            return [entry.info(is_loading=entry in self._cache.coming) for entry in entries]

    def totals(self) -> AdapterTotals:
        """Return the counts of all names together; it takes the same time for any number of them."""
        with self._cache.lock:
            cache = self._cache
            resident = sum(len(one.entries) for one in cache.residents.values())
            return AdapterTotals(
                names=len(self._entries), resident=resident, loads=cache.loads, load_seconds=cache.load_seconds
            )

    def info(self, name: str) -> AdapterInfo:
        """Return the state of one name; raises AdapterError for an unknown name."""
        source = self._source(name)
        with self._cache.lock:
            if source is not None and name not in self._entries:
                return Entry(name, source, 1.0, is_found=True).info(is_loading=False)
            entry = self._find(name)
            return entry.info(is_loading=entry in self._cache.coming)

    def names(self) -> KeysView[str]:
        """Return a view of the names that were added or asked for, in this order."""
        return self._entries.keys()

    def has(self, name: str) -> bool:
        """Return whether requests can use a name: one that was added, or one of the directory."""
        entry = self._entries.get(name)
        return (entry is not None and not entry.is_found) or self.is_available(name)

    def is_available(self, name: str) -> bool:
        """Return whether the directory has an adapter of that name, and no other one was added under it."""
        try:
            return self._source(name) is not None
        except AdapterError:  # it is there, and a request is told why it may not be used
            return True

    def available(self, after: str = "", most: int = 1000) -> list[str]:
        """Return the names of the directory that come after ``after``, sorted, at most ``most`` of them."""
        if self._directory is None:
            return []
        return [name for name in self._directory.names(after, most) if name not in self._base]

    def _source(self, name: str) -> str | None:
        """Return where the directory has an adapter, None if it has none; raises its AdapterError. No lock is held,
        since a folder may hang."""
        if self._directory is None or not isinstance(name, str) or name in self._base:
            return None
        is_added = (entry := self._entries.get(name)) is not None and not entry.is_found
        return None if is_added else self._directory.find(name)

    def _look_up(self, names: Iterable[str]) -> None:
        """Add the entries of adapters of the directory, and forget those that have left it; raises AdapterError."""
        for name in names if self._directory is not None else ():
            if not isinstance(name, str):
                continue
            source = self._source(name)
            with self._cache.lock:
                entry = self._entries.get(name)
                if entry is None and source is not None:
                    self._entries[name] = Entry(name, source, 1.0, is_found=True)
                elif entry is not None and entry.is_found and source is not None:
                    entry.source = source
            if entry is not None and entry.is_found and source is None:
                with suppress(AdapterError):  # another request has found it gone
                    self.remove(name)
                raise AdapterError(f"adapter {name}", "it has been removed from adapters.directory", "use another")

    def _find(self, name: str) -> Entry:
        if not isinstance(name, str):
            raise AdapterError("adapter", f"its name is a {type(name).__name__}, not a text", "give a name")
        if (entry := self._entries.get(name)) is None:
            raise AdapterError(f"adapter {name!r}", "there is none of that name", self._known(name))
        return entry

    def _known(self, name: str) -> str:
        if len(self._entries) > MOST_SUGGESTED:
            return "see engine.adapters"
        if not self._entries:
            there = "" if self._directory is None else ", or put it into adapters.directory"
            return f"load it with engine.adapters.load, or --lora NAME=PATH{there}"
        return unknown_key_remedy(name, self._entries)

    # ------------------------------------------------------------------------------------------------ by request ---

    def refer(self, spec: Spec, prompt: NDArray[np.int32] | None = None) -> AdapterReference:
        """Return a reference to a request's adapters; raises RequestError for errors that are visible before loading.

        prompt: (n,) the request's, in which activated adapters find their invocations.
        """
        self._meet(spec)
        with self._cache.lock:
            reference = self._claim(spec, prompt)
            for entry in reference.entries:
                entry.begin_wait(reference)
            return reference

    def check(self, spec: Spec) -> None:
        """Raise the RequestError that ``refer`` would raise."""
        self._meet(spec)
        with self._cache.lock:
            self._claim(spec)

    def try_out(self, spec: Spec | None) -> None:
        """Raise the error that a request with these adapters would meet before it runs; reads them if necessary.

        Raises RequestError, AdapterError or ResourceError; blocks during the load.
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

    def _meet(self, spec: Spec) -> None:
        """Look a request's adapters up in the directory; raises RequestError."""
        try:
            self._look_up((spec,) if isinstance(spec, str) else (name for name, _ in spec))
        except AdapterError as error:
            raise RequestError(error.what, error.why, error.remedy) from None

    def _claim(self, spec: Spec, prompt: NDArray[np.int32] | None = None) -> AdapterReference:
        pairs = ((spec, 1.0),) if isinstance(spec, str) else spec
        unknown = next((name for name, _ in pairs if name not in self._entries), None)
        if unknown is not None:
            raise RequestError(f"adapter {unknown!r}", "no adapter of that name is loaded", self._known(unknown))
        if len(pairs) > self._cache.most:
            why = f"adapters.max_resident is {self._cache.most}"
            raise RequestError(f"{len(pairs)} adapters", why, "name fewer, or raise it")
        reference = AdapterReference(
            self, tuple(self._entries[name] for name, _ in pairs), tuple(weight for _, weight in pairs), prompt
        )
        self._check(reference)
        return reference

    def holds(self, contents: Iterable[str]) -> bool:
        """Return whether contents are in memory, by their ids."""
        return all(id_ in self._cache.residents for id_ in contents)

    def acquire(self, reference: AdapterReference) -> bool:
        """Give a request its adapters if all are in memory; a request whose adapters cannot be combined fails."""
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
                cache.claim(resident)
                resident.promised.discard(reference)
                cache.touch(resident)
            reference.hold(residents)
            self._stop_waiting(reference)
            return True

    def release(self, reference: AdapterReference) -> None:
        """Take a request's adapters back for now; it waits for the same contents."""
        with self._cache.lock:
            if reference.residents:
                for resident in reference.residents:
                    resident.promised.add(reference)
                for entry in reference.entries:
                    entry.begin_wait(reference)
                self._take_back(reference)

    def close_reference(self, reference: AdapterReference) -> None:
        """End a request's hold on its adapters, or its wait for them."""
        with self._cache.lock:
            if reference.is_closed:
                return
            reference.is_closed, reference.owner = True, None
            self._take_back(reference)
            self._stop_waiting(reference)

    def prefetch(self, references: Sequence[AdapterReference]) -> int:
        """Begin to load the adapters of waiting requests, in the order of ``references`` (prefetch.py).

        Returns how many of the first do not wait for other requests to end; the rest lack room.
        """
        with self._cache.lock:
            return prefetch(self._cache, self._loading, references, self._fail)

    def _take_back(self, reference: AdapterReference) -> None:
        reference.residents, reference.rows, reference.begins = (), (), ()
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
            if not (reference.contents and reference.is_ready()):  # the contents to continue with are in memory
                self._fail(reference, error)

    def _fail(self, reference: AdapterReference, error: InfengError) -> None:
        reference.error = error
        self._stop_waiting(reference)
        self.failed.append(reference)
        self._cache.notify()

    def _stop_waiting(self, reference: AdapterReference) -> None:
        for entry in reference.entries:
            entry.end_wait(reference)
            self._retire(entry)

    def _retire(self, entry: Entry) -> None:
        """Unbind an unloaded name from its contents once no request waits for them."""
        if entry.is_gone and not entry.waiting:
            self._cache.detach(entry)

    # ----------------------------------------------------------------------------------------------- by the loop ---

    @property
    def changes(self) -> int:
        """Counts changes after which a request may be able to start."""
        return self._cache.changes

    @property
    def evictions(self) -> int:
        """Number of contents that were evicted for others."""
        return self._cache.evictions

    def notify(self) -> None:
        """Wake a step that waits for an adapter, because other work may have arrived."""
        with self._cache.lock:
            self._cache.notify()

    def wait(self, mark: int, timeout: float = math.inf) -> bool:
        """Sleep until ``changes`` differs from ``mark``; return False at once if no load is under way that could
        change it.

        After ``timeout`` seconds it returns True, because other work may have arrived.

        Raises KernelError where ``interrupt`` is called meanwhile.
        """
        return self._cache.wait(mark, timeout)

    def interrupt(self) -> None:
        """Make a step that waits for an adapter raise KernelError."""
        self._cache.interrupt()

    def close(self) -> None:
        """Forget everything; the results of running loads are discarded."""
        self._loading.close()
        with self._cache.lock:
            for entry in self._entries.values():
                entry.is_gone = True
                self._cache.detach(entry)
            self._entries.clear()
            self._cache.gone.clear()
