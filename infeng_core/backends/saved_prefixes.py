"""Computed prefixes outlive the process: a plugin's store saves blocks of an executable's cache and restores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.backends.interface import BlockAccess, Executable
from infeng_core.errors import UsageError

AT_ONCE = 64
"""Blocks that are saved at once, before the caller can turn to more urgent work."""

PrefixEntry = tuple[bytes, int, bytes, tuple[int, ...], tuple[int, ...]]
"""A block of a prefix tree, after its parent: the key (32 bytes) under which its prefix is shared, its depth, its
tokens (int32), its number in the cache, and its numbers for layers with windows (none here)."""

ReadBlocks = Callable[[NDArray[np.int32]], NDArray[np.uint8]]
"""``BlockAccess.read_blocks``."""
WriteBlocks = Callable[[NDArray[np.int32], NDArray[np.uint8]], None]
"""``BlockAccess.write_blocks``."""


class PrefixStore(Protocol):
    """Stores blocks of a cache by the prefixes that they end. It is used between steps, on the thread that runs them.

    A block that the store cannot read is computed again and is no error. Factories of stores are registered by name
    through the hook ``infeng_prefix_stores``.
    """

    def restore(
        self, key: bytes, tokens: NDArray[np.int32], begin: int, blocks: NDArray[np.int32], write_blocks: WriteBlocks
    ) -> int:
        """Write the stored blocks of the prefix ``tokens`` (n,), from block ``begin`` on, to ``blocks``; return how
        many.

        blocks: at least as many cache block numbers as ``tokens`` have whole blocks after ``begin``. The first ones
        are filled without a gap, and only with bytes whose checksum is right.
        """

    def save(self, entries: Iterable[PrefixEntry], read_blocks: ReadBlocks, most_blocks: int | None) -> int:
        """Save the entries that are new, up to ``most_blocks`` (None: all); return how many were saved."""

    def close(self) -> None:
        """Release locks and files that only one process may hold."""


class Tree(Protocol):
    """The part of a ``PrefixTree`` that saving reads."""

    @property
    def insertions(self) -> int:
        """The number of blocks inserted so far."""

    def entries(self) -> Iterable[PrefixEntry]:
        """Return all blocks, each after its parent."""


PrefixStoreFactory = Callable[[Path, str, int, int], PrefixStore]
"""Called as ``factory(directory, identity, block_bytes, most_bytes)``; blocks of another identity stay unseen."""


class SavedPrefixes:
    """A store of prefixes and the executable whose blocks it saves. It is used on the thread that runs the steps."""

    def __init__(
        self, factory: PrefixStoreFactory, directory: Path, most_bytes: int, executable: Executable, model_id: str
    ) -> None:
        """Open a directory for ``most_bytes``; raises ResourceError, or UsageError for a backend without block
        access."""
        if not isinstance(executable, BlockAccess):
            raise UsageError("kv_cache.prefix_dir", "this backend gives no cache blocks", "leave it out")
        self._executable = executable
        layout, [sample] = executable.block_layout(), executable.read_blocks(np.zeros(1, np.int32))
        self._store = factory(directory, f"{model_id} {layout}", len(sample), most_bytes)
        self._seen: tuple[Tree | None, int] = (None, 0)  # a tree, and the number of its insertions that are saved

    def restore(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32], begin: int) -> int:
        """Fill ``blocks`` from index ``begin`` on with the saved blocks of a prefix; return how many are filled.

        tokens: (n,) of the prefix; only its whole blocks are looked up. blocks: at least one for each whole block.
        """
        return self._store.restore(key, tokens, begin, blocks[begin:], self._executable.write_blocks)

    def save(self, prefixes: Tree | None, most: int | None = AT_ONCE) -> int:
        """Save the new blocks of a PrefixTree, up to ``most`` (None: all); return how many were saved."""
        if prefixes is None or self._seen == (prefixes, prefixes.insertions):
            return 0
        insertions = prefixes.insertions
        saved = self._store.save(prefixes.entries(), self._executable.read_blocks, most)
        if most is None or saved < most:
            self._seen = prefixes, insertions
        return saved

    def close(self) -> None:
        """Release the files, so that other processes can use them."""
        self._store.close()
