"""What an engine offers its callers about adapters."""

from __future__ import annotations

from pathlib import Path

from infeng_core.adapters.records import AdapterInfo
from infeng_core.adapters.registry import Registry


class AdapterCalls:
    """The part of ``Engine`` that names, keeps and lists adapters; any thread may call it, beside any step."""

    _adapters: Registry

    def _check_open(self) -> None:
        raise NotImplementedError  # the engine's own

    def load_adapter(self, name: str, path: str | Path, *, scale: float = 1.0, pin: bool = False) -> None:
        """Give a PEFT directory, an artifact or a hub name a name that requests can use.

        It is read when it is first asked for, beside the running batch, and may leave the memory when others are asked
        for; pinned, it is read now and stays. scale multiplies its alpha / r.

        Raises AdapterError for a name that cannot be, is taken or is the base's, and for a path that is not there;
        pinned, also for an adapter that cannot be used, and ResourceError where there is no room.
        """
        self._check_open()
        self._adapters.add(name, path, scale=scale, pin=pin)

    def unload_adapter(self, name: str) -> None:
        """Forget a name; requests that have named it are served. Raises AdapterError where there is none."""
        self._check_open()
        self._adapters.remove(name)

    def pin_adapter(self, name: str, pinned: bool = True) -> None:
        """Load an adapter now if need be and keep it in memory, or let it leave again; raises as ``load_adapter``."""
        self._check_open()
        self._adapters.pin(name, pinned)

    def reload_adapter(self, name: str) -> None:
        """Read an adapter's files again; requests that run finish on what they started with.

        Where they cannot be used, the old ones stay and AdapterError or ResourceError is raised.
        """
        self._check_open()
        self._adapters.reload(name)

    def adapters(self) -> list[AdapterInfo]:
        """Return what is known of every adapter, in the order in which they were named."""
        self._check_open()
        return self._adapters.infos()
