"""Blocks of prompts that were computed before, found by their tokens: requests that begin alike share them.

A tree of whole blocks for each key. A node is a block of 16 tokens; its path from the root is a prefix, and what a
block holds depends on its path and its key alone. Here is neither clock nor storage: "recently" counts calls.

What holds between two calls:

- the tree has one reference to the block of every node, and no block has two nodes;
- a node's block holds the keys and values of the node's path, computed under the path's key;
- a node leaves before its parent does, and only ``drop`` and ``clear`` take one that somebody else holds, or one below
  which somebody holds a block; its holders keep the block;
- ``evictable`` counts the nodes that ``evict`` could take: neither they nor any node below them has another holder.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.scheduling.blocks import BlockPool
from infeng_core.step import BLOCK_TOKENS

_PIECE = 4 * BLOCK_TOKENS  # bytes of a block's tokens


def prefix_key(
    model_id: str, cache_format: str, numerics: str, adapters: Sequence[tuple[str, float]], salt: str
) -> bytes:
    """Return what must be equal, beside the tokens, for two requests to share blocks: (32,) bytes.

    model_id: the contents of the base, as ``LoadedModel.id``.
    cache_format: how keys and values are stored, as ``kv_cache.dtype``.
    numerics: the class of arithmetic within which bytes are equal.
    adapters: (content hash, weight) of each, in the order of the request, which is the order of their sums.
    salt: separates those who must not learn from the time of an answer what others have asked; set by the server.
    """
    parts = [model_id, cache_format, numerics, [[name, float(weight).hex()] for name, weight in adapters], salt]
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii")).digest()


class Entry(NamedTuple):
    """A block of the tree, as ``PrefixTree.entries`` gives it."""

    key: bytes
    depth: int
    """Blocks before it on its path."""
    tokens: bytes
    """Its 16 tokens, as int32 of this machine."""
    block: int


class _Node:
    """A block in its place; a root has none."""

    __slots__ = ("block", "children", "grips", "is_queued", "is_shared", "parent", "tokens", "used")

    def __init__(self, parent: _Node | None, tokens: bytes, block: int, used: int) -> None:
        self.parent = parent
        self.tokens = tokens  # of a root: its key
        self.block = block
        self.used = used  # the number of the last call that came by
        self.children: dict[bytes, _Node] = {}
        self.is_shared = False  # somebody beside the tree holds the block
        self.grips = 0  # is_shared + how many children have any; with one or more, the node stays
        self.is_queued = False  # it has a place in the heap


class PrefixTree:
    """Finds the blocks of a prefix and keeps them until room is wanted. Not thread-safe, as the pool is not.

    The tree holds a reference to each of its blocks and is the pool's watcher, so that it knows without looking which
    of them nobody else holds.
    """

    def __init__(self, pool: BlockPool, most_blocks: int | None = None) -> None:
        """Keep up to ``most_blocks`` blocks of ``pool``; None: as many as are not wanted elsewhere."""
        self.pool = pool
        """Whose blocks it keeps."""
        self._most = pool.total if most_blocks is None else most_blocks
        self._roots: dict[bytes, _Node] = {}
        self._nodes: dict[int, _Node] = {}  # by block
        self._heap: list[
            tuple[int, int]
        ] = []  # (used, block); each leaf that could go has one, perhaps with an old used
        self._calls = 0
        self.evictable = 0
        """Blocks that ``evict`` could free now."""
        self.tokens_queried = 0
        """Tokens that ``match`` was asked for."""
        self.tokens_hit = 0
        """Tokens whose blocks it found."""
        self.evictions = 0
        """Blocks that went because room was wanted."""
        self.insertions = 0
        """Blocks that came; unchanged where there is nothing new to save."""
        pool.watcher = self

    def __len__(self) -> int:
        """Return how many blocks the tree holds."""
        return len(self._nodes)

    def match(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return the blocks of the longest known prefix of ``tokens`` (n,), (blocks,) int32, first the first.

        Whole blocks only, of at most ``limit`` tokens together. The caller has a reference to each and releases them
        like its own. It must not write to them.
        """
        self._calls = used = self._calls + 1
        nodes = self._path(key, tokens, limit)
        for node in nodes:
            node.used = used
        self.tokens_queried += max(0, min(limit, len(tokens)))
        self.tokens_hit += BLOCK_TOKENS * len(nodes)
        blocks = np.array([node.block for node in nodes], np.int32)
        self.pool.retain(blocks)
        return blocks

    def peek(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> int:
        """Return of how many tokens ``match`` would find the blocks; nothing counts as used or asked for."""
        return BLOCK_TOKENS * len(self._path(key, tokens, limit))

    def insert(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32]) -> int:
        """Keep the blocks of a prefix and return how many of them the tree took.

        tokens: (n,); a last block that they do not fill is left out.
        blocks: (at least n / 16,) the caller's, written by steps that have been committed; nobody writes to them again.

        A block that the tree has for the same prefix stays, and the caller's is left alone. Where ``most_blocks`` are
        reached, the least recently used go; if nothing can go, the end of the prefix is left out. Raises ValueError,
        and takes nothing, for a block that nobody holds or that already is in the tree with another prefix.
        """
        self._calls = used = self._calls + 1
        pieces = pieces_of(tokens, BLOCK_TOKENS * len(blocks))
        node = self._roots.get(key) or _Node(None, key, -1, used)
        known = 0
        for piece in pieces:
            child = node.children.get(piece)
            if child is None:
                break
            child.used = used
            node = child
            known += 1
        new: list[int] = blocks[known : len(pieces)].tolist()
        if not self._nodes.keys().isdisjoint(new) or len(set(new)) != len(new):
            raise ValueError("a block of the prefix is in the tree with another one")
        new = new[: self._make_room(len(new), node)]
        if not new:
            return 0
        self.pool.retain(np.array(new, np.int32))
        self._roots.setdefault(key, node)  # a new root, where nothing was known; else it is there
        self._grip(node)  # by its new child
        for block, piece in zip(new, pieces[known:], strict=False):
            child = _Node(node, piece, block, used)
            child.is_shared, child.grips = True, 2  # the caller holds it, and the one below it
            node.children[piece] = self._nodes[block] = child
            node = child
        node.grips = 1  # none below it
        self.insertions += len(new)
        return len(new)

    def evict(self, count: int) -> int:
        """Free up to ``count`` blocks that only the tree holds, least recently used leaves first; return how many."""
        freed: list[int] = []
        while len(freed) < count and self._heap:
            used, block = heapq.heappop(self._heap)
            node = self._nodes[block]
            node.is_queued = False
            if node.grips or node.children:
                continue  # it comes back when they are gone
            if node.used != used:
                self._queue(node)
                continue
            del self._nodes[block]
            self._cut(node)
            freed.append(block)
        self.evictable -= len(freed)
        self.evictions += len(freed)
        self.pool.release(np.array(freed, np.int32))
        return len(freed)

    def drop(self, key: bytes) -> int:
        """Forget all prefixes of a key, whoever holds their blocks; return how many blocks that were."""
        root = self._roots.pop(key, None)
        return 0 if root is None else self._forget([root])

    def clear(self) -> None:
        """Forget everything."""
        roots = list(self._roots.values())
        self._roots.clear()
        self._forget(roots)

    def entries(self) -> Iterator[Entry]:
        """Give every block, each after the one before it on its path; the tree must not change meanwhile."""
        for key, root in self._roots.items():
            depths = {id(root): -1}
            for node in _below(root):
                depth = depths[id(node.parent)] + 1
                if node.children:
                    depths[id(node)] = depth
                yield Entry(key, depth, node.tokens, node.block)

    # ------------------------------------------------------------------------------------------ the pool's watcher ---

    def shared(self, blocks: list[int]) -> None:
        """Note blocks that somebody else holds, too."""
        for block in blocks:
            node = self._nodes.get(block)
            if node is not None and not node.is_shared:
                node.is_shared = True
                self._grip(node)

    def alone(self, blocks: list[int]) -> None:
        """Note blocks that nobody else holds any more."""
        for block in blocks:
            node = self._nodes.get(block)
            if node is not None and node.is_shared:
                node.is_shared = False
                self._let_go(node)

    # -------------------------------------------------------------------------------------------------- internals ---

    def _path(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> list[_Node]:
        """Return the nodes of the longest known prefix."""
        nodes: list[_Node] = []
        root = self._roots.get(key)
        if root is None:
            return nodes
        children = root.children
        for piece in pieces_of(tokens, limit):
            node = children.get(piece)
            if node is None:
                break
            nodes.append(node)
            children = node.children
        return nodes

    def _make_room(self, count: int, node: _Node) -> int:
        """Return how many of ``count`` blocks fit, below a node which stays, when others have gone."""
        lacking = len(self._nodes) + count - self._most
        if lacking > 0:
            self._grip(node)
            lacking -= self.evict(lacking)
            self._let_go(node)
        return max(0, count - max(0, lacking))

    def _forget(self, roots: list[_Node]) -> int:
        """Take out what is below roots that have left; return how many blocks that were."""
        nodes = [node for root in roots for node in _below(root)]
        for node in nodes:
            del self._nodes[node.block]
            self.evictable -= node.grips == 0
        self._heap = [place for place in self._heap if place[1] in self._nodes]
        heapq.heapify(self._heap)
        self.pool.release(np.array([node.block for node in nodes], np.int32))
        return len(nodes)

    def _grip(self, node: _Node) -> None:
        """Add a reason for a node to stay, and thereby for those above it."""
        while node.parent is not None:
            node.grips += 1
            if node.grips > 1:
                return
            self.evictable -= 1
            node = node.parent

    def _let_go(self, node: _Node) -> None:
        """Take a reason for a node to stay, and thereby from those above it."""
        while node.parent is not None:
            node.grips -= 1
            if node.grips:
                return
            self.evictable += 1
            self._queue(node)
            node = node.parent

    def _cut(self, node: _Node) -> None:
        """Take a leaf from its parent."""
        parent = node.parent
        assert parent is not None  # roots are not in the heap
        del parent.children[node.tokens]
        if parent.parent is not None:
            self._queue(parent)
        elif not parent.children:
            del self._roots[parent.tokens]

    def _queue(self, node: _Node) -> None:
        """Give a node a place in the heap if it is a leaf that could go."""
        if not (node.children or node.grips or node.is_queued):
            node.is_queued = True
            heapq.heappush(self._heap, (node.used, node.block))


def pieces_of(tokens: NDArray[np.int32], limit: int) -> list[bytes]:
    """Return the tokens of each whole block, at most ``limit`` tokens in all."""
    count = max(0, min(limit, len(tokens))) // BLOCK_TOKENS
    data = tokens[: count * BLOCK_TOKENS].astype(np.int32, copy=False).tobytes()
    return [data[begin : begin + _PIECE] for begin in range(0, len(data), _PIECE)]


def _below(root: _Node) -> Iterator[_Node]:
    """Give the nodes below a root, each after its parent, a path at a time."""
    stack = [*root.children.values()]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()
