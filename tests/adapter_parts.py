"""Adapters with contents that tests choose, and helpers for tests of the adapter registry."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from infeng_core.adapters.records import AdapterInfo
from infeng_core.adapters.reference import AdapterReference
from infeng_core.adapters.registry import Registry
from infeng_core.formats.adapters.packed import LoraPart, LoraTensor, PackedAdapter


class Store:
    """A source of adapters: {source: contents or an error}. ``gate`` blocks reads until it is set."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes | Exception] = {}
        self.rank = 8
        self.is_dora = False
        self.reach = 1.0
        self.reads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.held: set[str] | None = None  # sources that the gate blocks; None: all
        self.returned = 0
        self.placed = 0  # live handles
        self.most_placed = 0
        self._lock = threading.Lock()

    def read(self, source: str, *, scale: float) -> PackedAdapter:
        self.reads.append(source)
        assert (self.held is not None and source not in self.held) or self.gate.wait(20)
        self.returned += 1
        contents = self.contents.get(source, source.encode())
        if isinstance(contents, Exception):
            raise contents
        id_ = hashlib.sha256(contents + repr(scale).encode()).hexdigest()
        row_scale = np.ones(16, np.float32) if self.is_dora else None
        part = LoraPart(self.rank, 0, 0, 1, 1, np.zeros((1, self.rank, 16), np.float32), None, row_scale, None)
        padded = -(-self.rank // 16) * 16
        tensor = LoraTensor(self.rank, np.zeros(padded * 4, np.uint8), np.ones(padded, np.float32), (part,))
        return PackedAdapter(id_, "base", "f32", Path(source), {"layers.0.qkv_proj": tensor}, reach=self.reach)

    def place(self, packed: PackedAdapter) -> Any:
        with self._lock:
            self.placed += 1
            self.most_placed = max(self.most_placed, self.placed)
        return Handle(self, packed)


class Handle:
    """A stand-in for a backend's adapter handle."""

    def __init__(self, store: Store, packed: PackedAdapter) -> None:
        self.nbytes = packed.nbytes
        self.id = packed.id
        self._store = store

    def __del__(self) -> None:
        with self._store._lock:
            self._store.placed -= 1


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for another thread."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)


def start(registry: Registry, spec: Any) -> AdapterReference:
    """Wait until a request has its adapters; raises the error that it gets."""
    lease = registry.refer(spec)
    end = time.monotonic() + 10
    while not lease.acquire():
        if lease.error is not None:
            raise lease.error
        mark = registry.changes
        registry.prefetch([lease])
        registry.wait(mark)
        assert time.monotonic() < end, "it never starts"
    return lease


def info(registry: Registry, name: str) -> AdapterInfo:
    return next(info for info in registry.infos() if info.name == name)


def resident(registry: Registry) -> list[str]:
    return [info.name for info in registry.infos() if info.state == "resident"]
