"""Blocks of prompts that were computed before, found by their tokens: requests that begin alike share them.

A tree for each key. A node is a block of 16 tokens; its path from the root is a prefix, and what its blocks hold
depends on its path and its key alone. Of the groups of layers that see all ("wide") it has a block each, as long as it
is there. Of the groups with a window ("near") it has them until their room is wanted, and sequences give theirs back
while they go on; then the node only stands for the way to those below it. A prefix is found as far as the wide blocks
of all its nodes are there, and the near ones of the nodes that the next row sees. Without windows there is one group,
which is wide. Here is neither clock nor storage: "recently" counts calls.

Invariants between two calls:

- the tree has one reference to each block of every node, and no block has two nodes;
- a node's blocks hold the keys and values of the node's path, computed under the path's key;
- a node has all of its wide blocks; it has all of its near blocks or none; one that has none at all has others below;
- a node leaves before its parent does, and only ``drop`` and ``clear`` take one whose wide blocks have other holders,
  or below which one has; holders keep their blocks;
- ``evictable`` counts the blocks that ``evict`` could free: near ones without other holders, and the wide ones of
  nodes where neither they nor any node below them have a wide block with another holder.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.prefix_nodes import Near, Node, below, lacking, lines_of, may_go, pieces_of
from infeng_core.scheduling.tables import Needs, held


class Entry(NamedTuple):
    """A node, as ``PrefixTree.entries`` gives it."""

    key: bytes
    depth: int
    """Nodes before it on its path."""
    tokens: bytes
    """Its 16 tokens, as int32 of this machine."""
    blocks: tuple[int, ...]
    """Of the groups that see all; without windows one."""
    near: tuple[int, ...]
    """Of those with a window; () where it has them no more."""


class PrefixTree:
    """Finds the blocks of a prefix and keeps them until room is wanted. Not thread-safe, as the pool is not.

    The tree holds a reference to each of its blocks and is the pool's watcher, so that it knows without looking which
    of them have no other holder.
    """

    def __init__(self, pool: BlockPool, needs: Needs | None = None) -> None:
        """Keep blocks of ``pool``; needs: of the groups of layers, None: there is one, and it sees all.

        Where groups have windows, ``match`` and ``insert`` have tables (groups, blocks), those of wide groups first, in
        place of blocks (blocks,).
        """
        self.pool = pool
        """Whose blocks it keeps."""
        self.needs = Needs((0,), 1) if needs is None else needs
        """Which groups of layers have blocks."""
        self._roots: dict[bytes, Node] = {}
        self._parts: dict[int, Node | Near] = {}  # by the first of their blocks
        # (used, whether it is a node, number of the entry, part); each that could go has one, perhaps with an old used.
        self._heap: list[tuple[int, bool, int, Node | Near]] = []
        self._entries = 0
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
        return sum(len(part.blocks) for part in self._parts.values())

    def match(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return the blocks of the longest prefix of ``tokens`` (n,) that can be gone on from, int32, first the first.

        Whole blocks only, of at most ``limit`` tokens together: (blocks,), or with windows tables (groups, blocks) in
        which near entries before the window of the end are -1. The caller has a reference to each and releases them
        like its own. It must not write to them.
        """
        self._calls = used = self._calls + 1
        nodes, needs = self._path(key, tokens, limit), self.needs
        for node in nodes:
            node.used = used
        self.tokens_queried += max(0, min(limit, len(tokens)))
        self.tokens_hit += BLOCK_TOKENS * len(nodes)
        tables = lines_of(nodes, needs.wide)
        if needs.near:
            first = needs.first(BLOCK_TOKENS * len(nodes))
            near = [node.near for node in nodes[first:] if node.near is not None]  # all have some
            for part in near:
                part.used = used
            wide, tables = tables, np.full((needs.groups, len(nodes)), -1, np.int32)
            tables[: needs.wide], tables[needs.wide :, first:] = wide, lines_of(near, needs.near)
        blocks = tables if needs.near else tables[0]
        self.pool.retain(held(blocks))
        return blocks

    def peek(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> int:
        """Return of how many tokens ``match`` would find the blocks; nothing counts as used or asked for."""
        return BLOCK_TOKENS * len(self._path(key, tokens, limit))

    def insert(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32]) -> int:
        """Keep the blocks of a prefix and return how many of them the tree took.

        tokens: (n,); a last block that they do not fill is left out.
        blocks: (at least n / 16,) the caller's, written by steps that have been committed; they are final.
            With windows (groups, at least n / 16), near ones as far as the caller has them, else -1.

        Blocks that the tree has for the same prefix stay, and the caller's are left alone. Raises ValueError, and takes
        nothing, for a block without holders or that already is in the tree with another prefix.
        """
        self._calls = used = self._calls + 1
        tables, wide = blocks if blocks.ndim == 2 else blocks[None], self.needs.wide
        pieces = pieces_of(tokens, BLOCK_TOKENS * tables.shape[1])
        root = node = self._roots.get(key) or Node(None, key, (), used)
        path: list[Node] = []
        for piece in pieces:
            child = node.children.get(piece)
            if child is None:
                break
            child.used = used
            path.append(child)
            node = child
        pieces = pieces[len(path) :]
        new = [tuple(column) for column in tables[:wide, len(path) : len(path) + len(pieces)].T.tolist()]
        near = lacking(path, tables[wide:, : len(path) + len(pieces)]) if self.needs.near else {}
        taken = self._claim([*new, *near.values()])
        if new:
            self._roots[key] = root
        for piece, own in zip(pieces, new, strict=True):
            child = node.children[piece] = Node(node, piece, own, used)
            if own:
                self._parts[own[0]] = child
                self._grip(node)
            path.append(child)
            node = child
        for index, own in near.items():
            self._parts[own[0]] = path[index].near = Near(path[index], own, used)
        for seen in path[self.needs.first(BLOCK_TOKENS * len(path)) :] if self.needs.near else ():
            if seen.near is not None:
                seen.near.used = used
        self._prune(node)
        return taken

    def evict(self, count: int) -> int:
        """Free at least ``count`` blocks that only the tree holds, as far as there are; return how many.

        Least recently used first, and leaves before those above them. A node frees all of its blocks: with one group,
        ``count`` is never exceeded.
        """
        gone: list[int] = []
        freed = 0
        while freed < count and self._heap:
            used, _, _, part = heapq.heappop(self._heap)
            part.is_queued = False
            if not may_go(part):
                continue  # it comes back when it may
            if part.used != used:
                self._queue(part)
                continue
            node = part if isinstance(part, Node) else part.node
            if part is node and node.near is not None:
                freed += 0 if node.near.is_shared else len(node.near.blocks)
                gone += self._give(node.near)
            freed += len(part.blocks)
            gone += self._give(part)
            self._prune(node)
        self.evictions += freed
        self.pool.release(np.array(gone, np.int32))
        return freed

    def drop(self, key: bytes) -> int:
        """Forget all prefixes of a key, even where their blocks are held; return how many blocks that were."""
        root = self._roots.pop(key, None)
        return 0 if root is None else self._forget([root])

    def clear(self) -> None:
        """Forget everything."""
        roots = list(self._roots.values())
        self._roots.clear()
        self._forget(roots)

    def entries(self) -> Iterator[Entry]:
        """Give every node, each after the one before it on its path; the tree must not change meanwhile."""
        for key, root in self._roots.items():
            for node, depth in below(root):
                yield Entry(key, depth, node.tokens, node.blocks, () if node.near is None else node.near.blocks)

    # ------------------------------------------------------------------------------------------ the pool's watcher ---

    def shared(self, blocks: list[int]) -> None:
        """Note blocks that got another holder."""
        for block in blocks:
            part = self._parts.get(block)
            if part is not None and not part.is_shared:
                part.is_shared = True
                if isinstance(part, Node):
                    self._grip(part)
                else:
                    self.evictable -= len(part.blocks)

    def alone(self, blocks: list[int]) -> None:
        """Note blocks that lost their last other holder."""
        for block in blocks:
            part = self._parts.get(block)
            if part is not None and part.is_shared:
                part.is_shared = False
                if isinstance(part, Node):
                    self._let_go(part)
                else:
                    self.evictable += len(part.blocks)
                    self._queue(part)

    # -------------------------------------------------------------------------------------------------- internals ---

    def _path(self, key: bytes, tokens: NDArray[np.int32], limit: int) -> list[Node]:
        """Return the nodes of the longest known prefix whose end sees no block that is gone."""
        nodes: list[Node] = []
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
        if not self.needs.near:
            return nodes
        usable = begin = 0  # nodes up to the last end that will do; the first with all near blocks
        for count, node in enumerate(nodes, 1):
            if node.near is None:
                begin = count
            if self.needs.first(BLOCK_TOKENS * count) >= begin:
                usable = count
        return nodes[:usable]

    def _claim(self, parts: list[tuple[int, ...]]) -> int:
        """Hold new blocks; return how many. Raises ValueError, and holds none, where one may not be taken."""
        blocks = [block for part in parts for block in part]
        if len({*blocks}) != len(blocks) or not self._parts.keys().isdisjoint(blocks):
            raise ValueError("a block of the prefix is in the tree with another one")
        self.pool.retain(np.array(blocks, np.int32))
        self.insertions += len(blocks)
        return len(blocks)

    def _give(self, part: Node | Near) -> tuple[int, ...]:
        """Take from a node what has no other holder, or what it has as it leaves; return the blocks, to be released."""
        blocks, part.blocks = part.blocks, ()
        if blocks:
            del self._parts[blocks[0]]
        if isinstance(part, Node):
            is_free = not part.grips
        else:
            is_free = not part.is_shared
            part.node.near = None
        self.evictable -= len(blocks) if is_free else 0
        return blocks

    def _prune(self, node: Node) -> None:
        """Take out a node, and those above it, that neither has blocks nor stands before one that has."""
        while not (node.children or node.blocks or node.near):
            parent = node.parent
            if parent is None:
                self._roots.pop(node.tokens, None)
                return
            del parent.children[node.tokens]
            self._queue(parent)
            node = parent

    def _forget(self, roots: list[Node]) -> int:
        """Give back what is below roots that have left; return how many blocks that were."""
        gone: list[int] = []
        for node, _ in (one for root in roots for one in below(root)):
            if node.near is not None:
                gone += self._give(node.near)
            gone += self._give(node)
        self._heap = [entry for entry in self._heap if entry[3].blocks]
        heapq.heapify(self._heap)
        self.pool.release(np.array(gone, np.int32))
        return len(gone)

    def _grip(self, node: Node) -> None:
        """Add a reason for a node to stay, and thereby for those above it."""
        while node.parent is not None:
            node.grips += 1
            if node.grips > 1:
                return
            self.evictable -= len(node.blocks)
            node = node.parent

    def _let_go(self, node: Node) -> None:
        """Take a reason for a node to stay, and thereby from those above it."""
        while node.parent is not None:
            node.grips -= 1
            if node.grips:
                return
            self.evictable += len(node.blocks)
            self._queue(node)
            node = node.parent

    def _queue(self, part: Node | Near) -> None:
        """Give a part a place in the heap if it could go."""
        if not part.is_queued and may_go(part):
            part.is_queued = True
            self._entries += 1
            heapq.heappush(self._heap, (part.used, isinstance(part, Node), self._entries, part))
