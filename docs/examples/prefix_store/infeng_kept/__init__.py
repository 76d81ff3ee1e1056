"""A store of prefixes that outlives an engine, but not its process: ``kv_cache.prefix_store: kept``.

A block is found by the digest of its key and of all tokens up to its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import PrefixStoreFactory, hookimpl
from infeng_core.api.engines import PrefixEntry

TOKENS = 16
"""Of a block."""

Blocks = dict[bytes, NDArray[np.uint8]]
_kept: dict[tuple[Path, str], Blocks] = {}


@hookimpl
def infeng_prefix_stores() -> dict[str, PrefixStoreFactory]:
    """Return the store."""
    return {"kept": Kept}


class Kept:
    """The blocks of one directory's name and one identity."""

    def __init__(self, directory: Path, identity: str, block_bytes: int, most_bytes: int) -> None:
        """Go on with what an engine before has kept."""
        self._blocks = _kept.setdefault((directory, identity), {})
        self._most = most_bytes // block_bytes

    def restore(
        self,
        key: bytes,
        tokens: NDArray[np.int32],
        begin: int,
        blocks: NDArray[np.int32],
        write_blocks: Callable[[NDArray[np.int32], NDArray[np.uint8]], None],
    ) -> int:
        """Write the blocks of ``tokens`` from ``begin`` on to ``blocks``, up to the first that is not kept."""
        found, digest = [], key
        for index in range(len(tokens) // TOKENS):
            digest = _after(digest, tokens[index * TOKENS : (index + 1) * TOKENS].tobytes())
            if index >= begin:
                if digest not in self._blocks:
                    break
                found.append(self._blocks[digest])
        if found:
            write_blocks(blocks[: len(found)], np.stack(found))
        return len(found)

    def save(
        self,
        entries: Iterable[PrefixEntry],
        read_blocks: Callable[[NDArray[np.int32]], NDArray[np.uint8]],
        most_blocks: int | None,
    ) -> int:
        """Keep blocks that are new while there is room."""
        path: list[bytes] = []  # the digest of each depth of the current path
        saved = 0
        for key, depth, tokens, (block,), _ in entries:
            digest = _after(path[depth - 1] if depth else key, tokens)
            path[depth:] = [digest]
            if digest in self._blocks or len(self._blocks) >= self._most:
                continue
            self._blocks[digest] = read_blocks(np.array([block], np.int32))[0]
            saved += 1
            if saved == most_blocks:
                break
        return saved

    def close(self) -> None:
        """Hold nothing that others want."""


def _after(digest: bytes, tokens: bytes) -> bytes:
    return hashlib.sha256(digest + tokens).digest()
