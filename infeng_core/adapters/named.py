"""The adapters of an engine, as its users see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from infeng_core.adapters.records import AdapterInfo, AdapterTotals
from infeng_core.adapters.reference import AdapterReference
from infeng_core.adapters.registry import Registry
from infeng_core.errors import ResourceError, UsageError


class NamedAdapters:
    """The adapters of an engine by name: ``engine.adapters``. Iteration gives the names, in the order of their
    loading; those of ``adapters.directory`` are among them once they were asked for (``available`` lists all).

    Any thread may call any method. Calls do not wait for steps, nor steps for loads. After ``engine.close()`` all
    methods raise UsageError.
    """

    def __init__(self, registry: Registry, check_open: Callable[[], None]) -> None:
        """Made by the engine; ``check_open`` raises UsageError once the engine is closed."""
        self._registry = registry
        self._check_open = check_open

    def load(self, name: str, path: str | Path, *, scale: float = 1.0, pin: bool = False) -> None:
        """Name a PEFT directory, an artifact or a hub name, so that requests can use it.

        The adapter is read at its first use, beside the running batch, and may be evicted for others; a pinned one is
        read now and stays. scale multiplies its alpha / r.

        Raises AdapterError for a name that is invalid, taken or the base's, and for a missing path; if pinned, also
        for an adapter that cannot be used, and ResourceError without room.
        """
        self._check_open()
        _check_flag("pin", pin)
        self._registry.add(name, path, scale=scale, pin=pin)

    def unload(self, name: str) -> None:
        """Forget a name; requests that already use it are served. Raises AdapterError for an unknown name.

        An adapter of ``adapters.directory`` leaves the memory, and its next request reads it as if it were new.
        """
        self._check_open()
        self._registry.remove(name)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Load an adapter if necessary and keep it in memory, or let it be evicted again; raises as ``load``."""
        self._check_open()
        _check_flag("pinned", pinned)
        self._registry.pin(name, pinned)

    def reload(self, name: str, path: str | Path | None = None) -> None:
        """Read an adapter's files again, or those of ``path`` from now on; running requests finish with the old ones.

        If the new files cannot be used, the old contents stay and AdapterError or ResourceError is raised.
        """
        self._check_open()
        self._registry.reload(name, path)

    @contextlib.contextmanager
    def held(self, name: str, prompt: Sequence[int]) -> Iterator[AdapterReference]:
        """Load an adapter and keep it in memory inside a ``with`` block, for batches that the caller makes.

        ``rows`` of what is yielded has its handle and weight, ``begins`` the first position of ``prompt``, (n,) token
        ids, on which an activated adapter acts; ``rows`` is empty if it acts on none.

        Raises RequestError for an unknown name, AdapterError for an adapter that cannot be used, ResourceError without
        room.
        """
        self._check_open()
        reference = self._registry.refer(name, np.asarray(prompt, np.int32))
        try:
            self._registry.try_out(name)
            if not self._registry.acquire(reference):
                raise reference.error or ResourceError(f"adapter {name!r}", "there is no room for it", "unload others")
            yield reference
        finally:
            reference.close()

    def infos(self, most: int | None = None) -> list[AdapterInfo]:
        """Return the state of the first ``most`` adapters, or of all, in the order in which they were named."""
        self._check_open()
        if most is not None:
            _check_count("most", most)
        return self._registry.infos(most)

    def totals(self) -> AdapterTotals:
        """Return the counts of all adapters together; it costs microseconds for any number of names."""
        self._check_open()
        return self._registry.totals()

    def available(self, after: str = "", most: int = 1000) -> list[str]:
        """Return names of ``adapters.directory`` in their order, at most ``most``, from the first one after ``after``.

        The folders are read again if they have changed; no adapter is.
        """
        self._check_open()
        if not isinstance(after, str):
            raise UsageError("after", f"a {type(after).__name__} is no name", "give the last name of the page before")
        _check_count("most", most)
        return self._registry.available(after, most)

    def is_available(self, name: str) -> bool:
        """Return whether ``adapters.directory`` has an adapter of that name, which was not given to another one."""
        self._check_open()
        return self._registry.is_available(name)

    def __getitem__(self, name: str) -> AdapterInfo:
        """Return the state of an adapter; raises AdapterError for an unknown name."""
        self._check_open()
        return self._registry.info(name)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an adapter of that name, one of ``adapters.directory`` included."""
        self._check_open()
        return isinstance(name, str) and self._registry.has(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that were loaded or asked for."""
        self._check_open()
        return iter(list(self._registry.names()))

    def __len__(self) -> int:
        """Return the number of names that were loaded or asked for."""
        self._check_open()
        return len(self._registry.names())


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(name, f"{value!r} is no number of adapters", "give a whole number of 0 or more")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(name, f"a {type(value).__name__} is neither true nor false", "give True or False")
