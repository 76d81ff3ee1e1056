"""The prefix cache: sequences start with blocks that others computed, or that a store restores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS, RunningRequest
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.prefix import PrefixTree, Turns, turned_key
from infeng_core.scheduling.tables import held

Restore = Callable[[bytes, NDArray[np.int32], NDArray[np.int32], int], int]
"""Fills blocks from an index on with stored blocks of a prefix: (key, tokens, blocks, begin) -> how many."""

KeyOf = Callable[[RunningRequest], bytes | None]
"""Returns the key under which a sequence's prefix is shared (``prefix_key``); None if its adapters' ids are unknown."""

TurnsOf = Callable[[RunningRequest], Turns]
"""Returns where the path of a sequence turns, because an adapter begins to act, and the marks (``turn_mark``)."""


def prefix_key(
    model_id: str, cache_format: str, numerics: str, adapters: Several[tuple[str, float]], salt: str
) -> bytes:
    """Return the key that two requests must share, besides equal tokens, to share blocks: (32,) bytes.

    model_id: the contents of the base, as ``LoadedModel.id``. cache_format: storage of keys and values, as
    ``kv_cache.dtype``. numerics: the class of arithmetic within which bytes are equal. adapters: (content hash,
    weight) of each, in the order of the request, which is the order of their sums. salt: separates users who must not
    learn from response times what others have asked; set by the server.
    """
    import hashlib  # slow: it loads OpenSSL

    parts = [model_id, cache_format, numerics, [[name, float(weight).hex()] for name, weight in adapters], salt]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii")).digest()


def turn_mark(adapters: Several[tuple[str, float, int]]) -> bytes:
    """Return the mark of the adapters that act on the last row of a block in which one of them begins: (32,) bytes.

    adapters: (content hash, weight, first position) of each, in the order of the request.
    """
    import hashlib  # slow: it loads OpenSSL

    parts = [[name, float(weight).hex(), begin] for name, weight, begin in adapters]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii")).digest()


def _no_turns(sequence: RunningRequest) -> Turns:
    return ()


class _Found(NamedTuple):
    sequence: RunningRequest
    key: tuple[bytes | None, Turns]
    blocks: NDArray[np.int32]


class PrefixCache:
    """A tree of computed prefixes, with the keys of sequences and an optional store.

    Blocks found for a sequence are held until it takes them, so that counting them and taking them later needs one
    search.
    """

    def __init__(
        self, tree: PrefixTree, key_of: KeyOf, restore: Restore | None = None, turns_of: TurnsOf = _no_turns
    ) -> None:
        """Share prefixes with equal tokens, ``key_of`` and ``turns_of``; restore: fills blocks from an earlier
        process."""
        self.tree = tree
        self.shares = True
        """Whether anything is shared."""
        self._key_of = key_of
        self._turns_of = turns_of
        self._restore = restore
        self._found: _Found | None = None

    @staticmethod
    def none(pool: BlockPool) -> PrefixCache:
        """Return a cache that shares nothing."""
        cache = PrefixCache(PrefixTree(pool), lambda sequence: None)
        cache.shares = False
        return cache

    def find(self, sequence: RunningRequest) -> NDArray[np.int32]:
        """Return the cached blocks of a sequence's beginning, (blocks,) int32; they stay held for it.

        At least one token is left to compute. If layers have windows, these are tables, (groups, blocks).
        """
        key, turns, found = self._key_of(sequence), self._turns_of(sequence), self._found
        # The key may have changed, with its adapters.
        if found is None or found.sequence is not sequence or found.key != (key, turns):
            self.let_go()
            blocks = np.empty(0, np.int32)
            if key is not None:
                blocks = self.tree.match(key, sequence.tokens[: sequence.length], _most_shared(sequence), turns)
            found = self._found = _Found(sequence, (key, turns), blocks)
        return found.blocks

    def take(self, sequence: RunningRequest) -> NDArray[np.int32]:
        """Return the same blocks for the sequence to keep; it releases them like its own."""
        blocks = self.find(sequence)
        self._found = None
        return blocks

    def let_go(self) -> None:
        """Release the blocks that were found and not taken."""
        if self._found is not None:
            self.tree.pool.release(held(self._found.blocks))
            self._found = None

    def cached(self, sequence: RunningRequest) -> int:
        """Return the number of tokens whose blocks ``find`` would return."""
        key = self._key_of(sequence)
        if key is None:
            return 0
        tokens = sequence.tokens[: sequence.length]
        return self.tree.peek(key, tokens, _most_shared(sequence), self._turns_of(sequence))

    def restore(self, sequence: RunningRequest, begin: int) -> int:
        """Fill a sequence's blocks from ``begin`` on with stored ones, and share them; return how many."""
        key = None if self._restore is None else self._key_of(sequence)
        if self._restore is None or key is None:
            return 0
        tokens, turns, end = sequence.tokens[: _most_shared(sequence)], self._turns_of(sequence), begin
        for span in _spans(key, tokens, turns):
            if span.begin <= end < span.end:
                blocks = sequence.blocks[span.begin : span.end]
                end += self._restore(span.key, span.tokens, blocks, end - span.begin)
        if end > begin:
            self.tree.insert(key, tokens[: BLOCK_TOKENS * end], sequence.blocks[:end], turns)
        return end - begin

    def keep(self, sequence: RunningRequest) -> None:
        """Share a sequence's computed blocks."""
        whole = sequence.computed // BLOCK_TOKENS
        key = self._key_of(sequence) if whole else None
        if key is not None:
            blocks = sequence.tables if self.tree.needs.near else sequence.blocks
            tokens, turns = sequence.tokens[: whole * BLOCK_TOKENS], self._turns_of(sequence)
            self.tree.insert(key, tokens, blocks[..., :whole], turns)


class _Span(NamedTuple):
    """Blocks [begin, end) of a prefix, between two turns, as a prefix of their own with ``key``."""

    key: bytes
    tokens: NDArray[np.int32]
    begin: int
    end: int


def _spans(key: bytes, tokens: NDArray[np.int32], turns: Turns) -> Iterator[_Span]:
    """Yield the spans of the whole blocks of ``tokens`` (n,), as a tree's entries have them."""
    begin, size = 0, len(tokens) // BLOCK_TOKENS
    for end, mark in (*((block, mark) for block, mark in turns if block < size), (size, b"")):
        own = tokens[BLOCK_TOKENS * begin : BLOCK_TOKENS * end]
        yield _Span(key, own, begin, end)
        key, begin = turned_key(key, own.astype(np.int32, copy=False).tobytes(), mark) if mark else key, end


def _most_shared(sequence: RunningRequest) -> int:
    """Return how many of a sequence's positions may come from the cache; the rest is computed for its results."""
    most = sequence.length - 1 if sequence.pooling is None else min(sequence.length - 1, sequence.pooling.begin)
    return most if sequence.report_from is None else min(most, sequence.report_from)
