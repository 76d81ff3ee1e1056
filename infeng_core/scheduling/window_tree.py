"""The prefix tree of models with windows: what a node keeps of each group of layers comes and goes by itself.

A node is a block of 16 tokens, as in prefix.py. Of the groups that see all ("wide") it has the blocks as long as it is
there. Of the groups with a window ("near") it has them until their room is wanted, and sequences give theirs back while
they go on; then the node only stands for the way to those below it. A prefix is found as far as the wide blocks of all
its nodes are there, and the near ones of those that the next row sees.

What holds between two calls:

- the tree has one reference to each block of every node, and no block has two nodes;
- a node has all of its wide blocks; it has all of its near blocks or none; one that has none at all has others below;
- a node leaves before its parent does;
- ``evictable`` counts the blocks that ``evict`` could free: near ones that nobody else holds, and the wide ones of
  nodes of which, and below which, nobody else holds any wide block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.prefix import pieces_of
from infeng_core.scheduling.tables import Needs
from infeng_core.step import BLOCK_TOKENS

NEAR, WIDE = 0, 1


class Kept(NamedTuple):
    """A node, as ``WindowTree.entries`` gives it."""

    key: bytes
    depth: int
    tokens: bytes
    blocks: tuple[int, ...]
    """Of the groups that see all."""
    near: tuple[int, ...]
    """Of those with a window; () where it has them no more."""


class _Node:
    """A block of tokens in its place; a root has none."""

    __slots__ = ("blocks", "children", "grips", "is_queued", "is_shared", "parent", "tokens", "used")

    def __init__(self, parent: _Node | None, tokens: bytes, used: int) -> None:
        self.parent = parent
        self.tokens = tokens  # of a root: its key
        self.children: dict[bytes, _Node] = {}
        # By NEAR and WIDE: blocks, the number of the last call that came by, whether somebody beside the tree holds
        # them, and whether they have a place in the heap.
        self.blocks: list[tuple[int, ...]] = [(), ()]
        self.used = [used, used]
        self.is_shared = [False, False]
        self.is_queued = [False, False]
        self.grips = 0  # whether its wide blocks are shared + how many children have any


class WindowTree:
    """Finds the blocks of a prefix and keeps them until room is wanted. Not thread-safe, as the pool is not.

    It has the methods of ``PrefixTree``, with tables (groups, blocks) in place of blocks, those of wide groups first.
    """

    def __init__(self, pool: BlockPool, needs: Needs) -> None:
        """Keep blocks of ``pool``; needs: of the groups of layers."""
        self.pool = pool
        self._needs = needs
        self._roots: dict[bytes, _Node] = {}
        self._nodes: dict[int, tuple[_Node, int]] = {}  # by the first of the blocks that a node has of a part
        self._heap: list[tuple[int, int, int, _Node]] = []  # (used, part, number of the entry, node)
        self._entries = 0
        self._calls = 0
        self.evictable = 0
        """Blocks that ``evict`` could free now."""
        self.tokens_queried = 0
        self.tokens_hit = 0
        self.evictions = 0
        """Blocks that went because room was wanted."""
        self.insertions = 0
        """Blocks that came."""
        pool.watcher = self

    def __len__(self) -> int:
        """Return how many blocks the tree holds."""
        return sum(len(node.blocks[part]) for node, part in self._nodes.values())

    def match(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return the tables of the longest prefix of ``tokens`` (n,) that can be gone on from, (groups, blocks) int32.

        Near entries before the window of its end are -1. The caller has a reference to each block and must not write to
        it.
        """
        self._calls = used = self._calls + 1
        nodes = self._path(key, tokens, limit)
        count, wide = len(nodes), self._needs.wide
        first = self._needs.first(BLOCK_TOKENS * count)
        tables = np.full((self._needs.groups, count), -1, np.int32)
        for part, seen, lines in ((WIDE, nodes, tables[:wide]), (NEAR, nodes[first:], tables[wide:, first:])):
            for node in seen:
                node.used[part] = used
            if lines.size:
                lines[:] = np.array([node.blocks[part] for node in seen], np.int32).T
        self.tokens_queried += max(0, min(limit, len(tokens)))
        self.tokens_hit += BLOCK_TOKENS * count
        self.pool.retain(tables[tables >= 0])
        return tables

    def peek(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> int:
        """Return of how many tokens ``match`` would find the blocks; nothing counts as used or asked for."""
        return BLOCK_TOKENS * len(self._path(key, tokens, limit))

    def insert(self, key: bytes, tokens: NDArray[np.int32], tables: NDArray[np.int32]) -> int:
        """Keep the blocks of a prefix and return how many of them the tree took.

        tokens: (n,); a last block that they do not fill is left out.
        tables: (groups, at least n / 16), the caller's, near ones as far as it has them, else -1; written by steps that
        have been committed, and nobody writes to them again.

        Blocks that the tree has for the same prefix stay, and the caller's are left alone. Raises ValueError for a
        block that nobody holds or that is in the tree with another prefix.
        """
        self._calls = used = self._calls + 1
        wide, taken = self._needs.wide, self.insertions
        pieces = pieces_of(tokens, BLOCK_TOKENS * tables.shape[1])
        first = self._needs.first(BLOCK_TOKENS * len(pieces))
        columns = tables[:, : len(pieces)].T.tolist()
        node = self._roots.get(key) or _Node(None, key, used)
        self._roots[key] = node
        try:
            for index, (piece, blocks) in enumerate(zip(pieces, columns, strict=True)):
                child = node.children.get(piece)
                if child is None:
                    child = _Node(node, piece, used)
                    self._take(child, WIDE, tuple(blocks[:wide]))
                    node.children[piece] = child
                child.used[WIDE] = used
                if not child.blocks[NEAR] and blocks[wide] >= 0:
                    self._take(child, NEAR, tuple(blocks[wide:]))
                if index >= first:
                    child.used[NEAR] = used
                node = child
        finally:
            self._prune(node)
        return self.insertions - taken

    def evict(self, count: int) -> int:
        """Free at least ``count`` blocks that only the tree holds, least recently used first; return how many."""
        freed = 0
        while freed < count and self._heap:
            used, part, _, node = heapq.heappop(self._heap)
            node.is_queued[part] = False
            if not self._may_go(node, part):
                continue  # it comes back when it may
            if node.used[part] != used:
                self._queue(node, part)
                continue
            if part == WIDE and node.blocks[NEAR]:
                freed += 0 if node.is_shared[NEAR] else len(node.blocks[NEAR])
                self._give(node, NEAR)
            freed += len(node.blocks[part])
            self._give(node, part)
            self._prune(node)
        self.evictions += freed
        return freed

    def drop(self, key: bytes) -> int:
        """Forget all prefixes of a key, whoever holds their blocks; return how many blocks that were."""
        root = self._roots.pop(key, None)
        return 0 if root is None else self._forget(root)

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._roots):
            self.drop(key)

    def entries(self) -> Iterator[Kept]:
        """Give every node, each after the one before it on its path; the tree must not change meanwhile."""
        for key, root in self._roots.items():
            stack = [(child, 0) for child in root.children.values()]
            while stack:
                node, depth = stack.pop()
                stack += [(child, depth + 1) for child in node.children.values()]
                yield Kept(key, depth, node.tokens, node.blocks[WIDE], node.blocks[NEAR])

    # ------------------------------------------------------------------------------------------ the pool's watcher ---

    def shared(self, blocks: list[int]) -> None:
        """Note blocks that somebody else holds, too."""
        for block in blocks:
            node, part = self._nodes.get(block, (None, NEAR))
            if node is not None and not node.is_shared[part]:
                node.is_shared[part] = True
                if part == WIDE:
                    self._grip(node)
                else:
                    self.evictable -= len(node.blocks[NEAR])

    def alone(self, blocks: list[int]) -> None:
        """Note blocks that nobody else holds any more."""
        for block in blocks:
            node, part = self._nodes.get(block, (None, NEAR))
            if node is not None and node.is_shared[part]:
                node.is_shared[part] = False
                if part == WIDE:
                    self._let_go(node)
                else:
                    self.evictable += len(node.blocks[NEAR])
                    self._queue(node, NEAR)

    # -------------------------------------------------------------------------------------------------- internals ---

    def _path(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> list[_Node]:
        """Return the nodes of the longest known prefix whose end sees no block that is gone."""
        nodes: list[_Node] = []
        node = self._roots.get(key)
        usable = begin = 0  # nodes up to the last end that will do; the first of those that have all near blocks
        for piece in pieces_of(tokens, limit) if node is not None else ():
            node = node.children.get(piece) if node is not None else None
            if node is None:
                break
            nodes.append(node)
            if not node.blocks[NEAR]:
                begin = len(nodes)
            if self._needs.first(BLOCK_TOKENS * len(nodes)) >= begin:
                usable = len(nodes)
        return nodes[:usable]

    def _take(self, node: _Node, part: int, blocks: tuple[int, ...]) -> None:
        """Give a node blocks that the caller of ``insert`` holds."""
        if not blocks:
            return
        if not self._nodes.keys().isdisjoint(blocks[:1]):
            raise ValueError("a block of the prefix is in the tree with another one")
        self.pool.retain(np.array(blocks, np.int32))
        self._nodes[blocks[0]] = node, part
        node.blocks[part] = blocks
        node.is_shared[part] = True
        node.used[part] = self._calls
        self.insertions += len(blocks)
        if part == WIDE:
            node.grips += 1
            if node.parent is not None:
                self._grip(node.parent)

    def _give(self, node: _Node, part: int) -> None:
        """Take blocks that nobody else holds, or those of a node that leaves, from it."""
        blocks, node.blocks[part] = node.blocks[part], ()
        if not blocks:
            return
        if (part == NEAR and not node.is_shared[NEAR]) or (part == WIDE and not node.grips):
            self.evictable -= len(blocks)
        node.is_shared[part] = False
        del self._nodes[blocks[0]]
        self.pool.release(np.array(blocks, np.int32))

    def _may_go(self, node: _Node, part: int) -> bool:
        if not node.blocks[part]:
            return False
        return not node.is_shared[NEAR] if part == NEAR else not (node.children or node.grips)

    def _prune(self, node: _Node) -> None:
        """Take out a node, and those above it, that neither has blocks nor stands before one that has."""
        while not node.children and not any(node.blocks):
            parent = node.parent
            if parent is None:
                self._roots.pop(node.tokens, None)
                return
            del parent.children[node.tokens]
            self._queue(parent, WIDE)
            node = parent

    def _forget(self, root: _Node) -> int:
        """Give back what is below a root that has left."""
        stack, count = [*root.children.values()], 0
        while stack:
            node = stack.pop()
            stack += node.children.values()
            count += len(node.blocks[NEAR]) + len(node.blocks[WIDE])
            self._give(node, NEAR)
            self._give(node, WIDE)
        self._heap = [entry for entry in self._heap if entry[3].blocks[entry[1]]]
        heapq.heapify(self._heap)
        return count

    def _grip(self, node: _Node) -> None:
        """Add a reason for a node's wide blocks to stay, and thereby for those above it."""
        while node.parent is not None:
            node.grips += 1
            if node.grips > 1:
                return
            self.evictable -= len(node.blocks[WIDE])
            node = node.parent

    def _let_go(self, node: _Node) -> None:
        """Take a reason for a node's wide blocks to stay, and thereby from those above it."""
        while node.parent is not None:
            node.grips -= 1
            if node.grips:
                return
            self.evictable += len(node.blocks[WIDE])
            self._queue(node, WIDE)
            node = node.parent

    def _queue(self, node: _Node, part: int) -> None:
        """Give a part of a node a place in the heap if it could go."""
        if not node.is_queued[part] and self._may_go(node, part):
            node.is_queued[part] = True
            self._entries += 1
            heapq.heappush(self._heap, (node.used[part], part, self._entries, node))
