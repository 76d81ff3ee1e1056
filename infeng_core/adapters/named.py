"""What users of an engine see of its adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from infeng_core.adapters.records import AdapterInfo
from infeng_core.adapters.registry import Registry
from infeng_core.errors import UsageError


class NamedAdapters:
    """The adapters of an engine by name: ``engine.adapters``. Iterating gives the names, in the order of their loading.

    Any thread may call any method; none waits for a step, and no step for a load. After ``engine.close()`` all of them
    raise UsageError.
    """

    def __init__(self, registry: Registry, check_open: Callable[[], None]) -> None:
        """Made by the engine; ``check_open`` raises UsageError where that is closed."""
        self._registry = registry
        self._check_open = check_open

    def load(self, name: str, path: str | Path, *, scale: float = 1.0, pin: bool = False) -> None:
        """Give a PEFT directory, an artifact or a hub name a name that requests can use.

        It is read when it is first asked for, beside the running batch, and may leave the memory when others are asked
        for; pinned, it is read now and stays. scale multiplies its alpha / r.

        Raises AdapterError for a name that cannot be, is taken or is the base's, and for a path that is not there;
        pinned, also for an adapter that cannot be used, and ResourceError where there is no room.
        """
        self._check_open()
        _check_flag("pin", pin)
        self._registry.add(name, path, scale=scale, pin=pin)

    def unload(self, name: str) -> None:
        """Forget a name; requests that have named it are served. Raises AdapterError where there is none."""
        self._check_open()
        self._registry.remove(name)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Load an adapter now if need be and keep it in memory, or let it leave again; raises as ``load``."""
        self._check_open()
        _check_flag("pinned", pinned)
        self._registry.pin(name, pinned)

    def reload(self, name: str) -> None:
        """Read an adapter's files again; requests that run finish on what they started with.

        Where they cannot be used, the old ones stay and AdapterError or ResourceError is raised.
        """
        self._check_open()
        self._registry.reload(name)

    def infos(self) -> list[AdapterInfo]:
        """Return what is known of every adapter, in the order in which they were named."""
        self._check_open()
        return self._registry.infos()

    def __getitem__(self, name: str) -> AdapterInfo:
        """Return what is known of an adapter; raises AdapterError where there is none of that name."""
        self._check_open()
        return self._registry.info(name)

    def __contains__(self, name: object) -> bool:
        """Return whether there is an adapter of that name."""
        self._check_open()
        return isinstance(name, str) and name in self._registry.names()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that there are now."""
        self._check_open()
        return iter(list(self._registry.names()))

    def __len__(self) -> int:
        """Return how many names there are."""
        self._check_open()
        return len(self._registry.names())


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(name, f"a {type(value).__name__} is neither true nor false", "give True or False")
