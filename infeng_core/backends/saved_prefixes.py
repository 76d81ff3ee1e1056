"""Computed prefixes outlive the process: blocks of an executable's cache go to a directory and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.backends.interface import BlockAccess, Executable
from infeng_core.errors import UsageError
from infeng_core.formats.prefixes import PrefixStore

AT_ONCE = 64
"""Blocks that are saved between two looks for something better to do."""


class SavedPrefixes:
    """A store of prefixes and the executable whose blocks it keeps. Used on the thread that runs the steps."""

    def __init__(self, directory: Path, most_bytes: int, executable: Executable, model_id: str) -> None:
        """Open a directory for at most ``most_bytes``; raises ResourceError, or UsageError for a backend that cannot."""
        if not isinstance(executable, BlockAccess):
            raise UsageError("kv_cache.prefix_dir", "this backend gives no cache blocks", "leave it out")
        self._executable = executable
        layout, [sample] = executable.block_layout(), executable.read_blocks(np.zeros(1, np.int32))
        self._store = PrefixStore(
            directory, identity=f"{model_id} {layout}", block_bytes=len(sample), most_bytes=most_bytes
        )
        self._seen: tuple[object, int] = (None, 0)  # a tree, and how many of its insertions are saved

    def restore(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32], begin: int) -> int:
        """Fill ``blocks`` from index ``begin`` on with what is saved of a prefix; return how many hold it now.

        tokens: (n,) of the prefix, of which whole blocks are looked for. blocks: at least as many as those.
        """
        found = self._store.find(key, tokens, begin)
        return self._store.load(found, blocks[begin : begin + len(found)], self._executable.write_blocks)

    def save(self, prefixes: Any, most: int | None = AT_ONCE) -> int:
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
