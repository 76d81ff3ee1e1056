"""Simulated adapters: names with a load time and an LRU cache of limited size."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from infeng_core.api import InfengError
from infeng_core.api.engines import AdapterHandle


class _Handle:
    """Stands for an adapter in memory."""

    nbytes = 0


class VirtualRegistry:
    """Keeps at most ``most`` adapters and loads one at a time, in ``load_seconds`` each.

    Like the engine's registry, it evicts the least recently used adapter without users.
    """

    def __init__(self, most: int, load_seconds: float) -> None:
        """Make an empty registry."""
        self.changes = 0
        self.loads = 0
        self.now = 0.0
        self._most = most
        self._load_seconds = load_seconds
        self._users: dict[str, int] = {}  # number of users by resident adapter, least recently used first
        self._loading: dict[str, float] = {}  # end of loading by adapter
        self._handles: dict[str, _Handle] = {}

    def advance(self, now: float) -> None:
        """Set the clock to ``now``: adapters whose loading has ended become resident."""
        self.now = now
        if not self._loading:
            return
        for name in [name for name, ready in self._loading.items() if ready <= now]:
            del self._loading[name]
            self._users[name] = 0
            self.changes += 1

    @property
    def next_change(self) -> float:
        """The end of the next load; infinite if nothing is loading."""
        return min(self._loading.values(), default=math.inf)

    def reference(self, name: str, begin: int = 0) -> VirtualReference:
        """Return the reference of a request to the adapter ``name``, which acts from position ``begin`` on."""
        return VirtualReference(self, name, self._handles.setdefault(name, _Handle()), begin)

    def prefetch(self, references: Sequence[VirtualReference]) -> int:
        """Start loading missing adapters in order; return how many references come before the first without room."""
        wanted = dict.fromkeys(reference.name for reference in references)
        for count, reference in enumerate(references):
            name = reference.name
            if name in self._users or name in self._loading:
                continue
            if len(self._users) + len(self._loading) >= self._most and not self._evict(wanted):
                return count
            begin = max(self.now, max(self._loading.values(), default=0.0))
            self._loading[name] = begin + self._load_seconds
            self.loads += 1
        return len(references)

    def is_ready(self, name: str) -> bool:
        """Return whether an adapter is in memory."""
        return name in self._users

    def take(self, name: str, count: int) -> None:
        """Add ``count`` users to a resident adapter."""
        users = self._users.pop(name) + count
        self._users[name] = users  # now the most recently used
        if users == 0:
            self.changes += 1

    def _evict(self, wanted: dict[str, None]) -> bool:
        """Evict an adapter without users that is not ``wanted``; return whether there was one."""
        name = next((name for name, users in self._users.items() if users == 0 and name not in wanted), None)
        if name is None:
            return False
        del self._users[name]
        return True


class VirtualReference:
    """The adapter of one request, with the interface of the engine's references."""

    error: InfengError | None = None

    def __init__(self, registry: VirtualRegistry, name: str, handle: _Handle, begin: int) -> None:
        """Made by ``VirtualRegistry.reference``."""
        self._registry = registry
        self.name = name
        self.begins: tuple[int, ...] = (begin,) if begin else ()
        self.rows: tuple[tuple[AdapterHandle, float], ...] = ()
        self._handle = handle

    @property
    def registry(self) -> VirtualRegistry:
        """The registry that loads it."""
        return self._registry

    @property
    def uses(self) -> Hashable:
        """Equal for requests that use the same adapter."""
        return self.name

    def known(self) -> tuple[tuple[str, float, int], ...]:
        """Return the name of its adapter, its weight and the first position on which it acts."""
        return ((self.name, 1.0, self.begins[0] if self.begins else 0),)

    def is_ready(self) -> bool:
        """Return whether it is resident."""
        return self.registry.is_ready(self.name)

    def acquire(self) -> bool:
        """Acquire it if it is resident; return whether the request holds it."""
        if not self.rows and self.is_ready():
            self.registry.take(self.name, 1)
            self.rows = ((self._handle, 1.0),)
        return bool(self.rows)

    def release(self) -> None:
        """Release it while the request does not run."""
        if self.rows:
            self.registry.take(self.name, -1)
            self.rows = ()

    def close(self) -> None:
        """Release it for good."""
        self.release()
