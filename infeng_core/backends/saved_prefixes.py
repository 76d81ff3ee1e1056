"""Computed prefixes outlive the process: blocks of an executable's cache go to a store of a plugin and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.backends.interface import BlockAccess, Executable
from infeng_core.errors import UsageError

AT_ONCE = 64
"""Blocks that are saved between two looks for something better to do."""

PrefixEntry = tuple[bytes, int, bytes, tuple[int, ...], tuple[int, ...]]
"""A block of a tree of prefixes, each after the one before it on its path: the key (32 bytes) under which its prefix is
shared, its depth, its tokens (int32), its number in the cache, and its numbers for layers with windows (none here)."""

ReadBlocks = Callable[[NDArray[np.int32]], NDArray[np.uint8]]
"""``BlockAccess.read_blocks``."""
WriteBlocks = Callable[[NDArray[np.int32], NDArray[np.uint8]], None]
"""``BlockAccess.write_blocks``."""


class PrefixStore(Protocol):
    """Keeps blocks of a cache by the prefixes that they end. Used on the thread that runs the steps, between steps.

    What it cannot read is no error: it is computed again. Registered by name through the hook ``infeng_prefix_stores``.
    """

    def restore(
        self, key: bytes, tokens: NDArray[np.int32], begin: int, blocks: NDArray[np.int32], write_blocks: WriteBlocks
    ) -> int:
        """Write what is kept of the prefix ``tokens`` (n,), from block ``begin`` on, to ``blocks``; return how many.

        blocks: at least as many numbers in the cache as ``tokens`` have whole blocks behind ``begin``. The first ones
        are filled, without a gap, and only by bytes that are checked.
        """

    def save(self, entries: Iterable[PrefixEntry], read_blocks: ReadBlocks, most_blocks: int | None) -> int:
        """Keep those of ``entries`` that are new, up to ``most_blocks`` (None: all); return how many those were."""

    def close(self) -> None:
        """Let go of what only one process may hold."""


class Tree(Protocol):
    """What is read of a ``PrefixTree``."""

    @property
    def insertions(self) -> int:
        """How many blocks were inserted so far."""

    def entries(self) -> Iterable[PrefixEntry]:
        """Return all blocks, each after the one before it on its path."""


PrefixStoreFactory = Callable[[Path, str, int, int], PrefixStore]
"""Called as ``factory(directory, identity, block_bytes, most_bytes)``: blocks of another identity are not seen."""


class SavedPrefixes:
    """A store of prefixes and the executable whose blocks it keeps. Used on the thread that runs the steps."""

    def __init__(
        self, factory: PrefixStoreFactory, directory: Path, most_bytes: int, executable: Executable, model_id: str
    ) -> None:
        """Open a directory for ``most_bytes``; raises ResourceError, or UsageError for a backend that cannot."""
        if not isinstance(executable, BlockAccess):
            raise UsageError("kv_cache.prefix_dir", "this backend gives no cache blocks", "leave it out")
        self._executable = executable
        layout, [sample] = executable.block_layout(), executable.read_blocks(np.zeros(1, np.int32))
        self._store = factory(directory, f"{model_id} {layout}", len(sample), most_bytes)
        self._seen: tuple[Tree | None, int] = (None, 0)  # a tree, and how many of its insertions are saved

    def restore(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32], begin: int) -> int:
        """Fill ``blocks`` from index ``begin`` on with what is saved of a prefix; return how many hold it now.

        tokens: (n,) of the prefix, of which whole blocks are looked for. blocks: at least as many as those.
        """
        return self._store.restore(key, tokens, begin, blocks[begin:], self._executable.write_blocks)

    def save(self, prefixes: Tree | None, most: int | None = AT_ONCE) -> int:
        """Append what is new of a PrefixTree, up to ``most`` blocks (None: all); return how many those are."""
        if prefixes is None or self._seen == (prefixes, prefixes.insertions):
            return 0
        insertions = prefixes.insertions
        saved = self._store.save(prefixes.entries(), self._executable.read_blocks, most)
        if most is None or saved < most:
            self._seen = prefixes, insertions
        return saved

    def close(self) -> None:
        """Let other processes go on in this one's files."""
        self._store.close()
