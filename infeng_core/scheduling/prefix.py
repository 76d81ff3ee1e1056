"""The tree of computed prompt blocks, found by their tokens: requests with equal beginnings share blocks.

There is a tree for each key. A node is a block of 16 tokens; its path from the root is a prefix, and the contents of
its blocks depend only on its path and its key. Where an activated adapter begins to act inside of a prefix, the path
turns: a mark of the adapter, beside the tokens, finds the first block that the adapter changes. Requests with the same
key share all blocks before it, with this adapter or without.

For each group of layers with full attention ("wide") a node has a block as long as it exists. For groups with a window
("near") it has blocks until their room is needed, and running sequences free theirs as the window moves on; the node
then only connects the nodes below it. A prefix is usable if its nodes have their wide blocks, and the nodes within the
next row's window their near blocks. Without windows there is one group, which is wide. The tree uses neither clock nor
storage: "recently" counts calls.

Invariants between two calls:

- the tree has one reference to each block of every node, and no block has two nodes;
- a node's blocks hold the keys and values of the node's path, computed under the path's key;
- a node has all of its wide blocks; it has all of its near blocks or none; a node without any block has children;
- a node is removed before its parent. Only ``drop`` and ``clear`` remove a node with wide blocks that have other
  holders, or with such a node below it; the holders keep their blocks;
- ``evictable`` counts the blocks that ``evict`` could free: near ones without other holders, and the wide ones of
  nodes where neither they nor any node below them have a wide block with another holder.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.tables import Needs, held

_PIECE = 4 * BLOCK_TOKENS  # bytes of a block's tokens

Turns = Sequence[tuple[int, bytes]]
"""(block, mark) in ascending order: from this block of a prefix on, contents depend on what ``mark`` stands for too."""


class Part:
    """The blocks of a node for the groups with a window; as a ``Node``, for the groups that see all."""

    __slots__ = ("blocks", "is_queued", "is_shared", "used")

    def __init__(self, blocks: tuple[int, ...], used: int) -> None:
        self.blocks = blocks
        self.used = used  # number of the last call that used it
        self.is_shared = bool(blocks)  # held outside the tree too; at first by the caller of ``insert``
        self.is_queued = False  # whether it is in the heap


class WindowBlocks(Part):
    """Blocks of the groups with a window."""

    __slots__ = ("node",)

    def __init__(self, node: Node, blocks: tuple[int, ...], used: int) -> None:
        super().__init__(blocks, used)
        self.node = node


class Node(Part):
    """A block of tokens in its place, with the blocks of the groups with full attention; a root has none."""

    __slots__ = ("children", "near", "parent", "references", "tokens")

    def __init__(self, parent: Node | None, tokens: bytes, blocks: tuple[int, ...], used: int) -> None:
        super().__init__(blocks, used)
        self.parent = parent
        self.tokens = tokens  # after the mark, where the path turns; a root's: its key
        self.children: dict[bytes, Node] = {}
        self.near: WindowBlocks | None = None
        self.references = int(
            self.is_shared
        )  # is_shared + number of children with references; with one or more, the node stays


class Entry(NamedTuple):
    """A node, as ``PrefixTree.entries`` yields it."""

    key: bytes
    """Of the whole path before it, where the path turned: ``turned_key``."""
    depth: int
    """Number of nodes before it on its path, from the latest turn on."""
    tokens: bytes
    """Its 16 tokens, as int32 of this machine."""
    blocks: tuple[int, ...]
    """Blocks of the groups with full attention; one without windows."""
    near: tuple[int, ...]
    """Blocks of the groups with a window; () once they are evicted."""


class PrefixTree:
    """Finds the blocks of a prefix and keeps them until their room is needed. Not thread-safe, like the pool.

    The tree holds a reference to each of its blocks. As the pool's watcher it knows which of them have other holders.
    """

    def __init__(self, pool: BlockPool, needs: Needs | None = None) -> None:
        """Keep blocks of ``pool``; needs: of the groups of layers, None: one group with full attention.

        If groups have windows, ``match`` and ``insert`` take tables (groups, blocks), wide groups first, in place of
        blocks (blocks,).
        """
        self.pool = pool
        """The pool of its blocks."""
        self.needs = Needs((0,), 1) if needs is None else needs
        """The groups of layers."""
        self._roots: dict[bytes, Node] = {}
        self._parts: dict[int, Node | WindowBlocks] = {}  # by the first of their blocks
        # (used, whether it is a node, number of the entry, part); each evictable part has one, perhaps with an old
        # used.
        self._heap: list[tuple[int, bool, int, Node | WindowBlocks]] = []
        self._entries = 0
        self._calls = 0
        self.evictable = 0
        """Blocks that ``evict`` could free now."""
        self.evictions = 0
        """Blocks that were evicted."""
        self.insertions = 0
        """Blocks that were inserted; if it is unchanged, there is nothing new to save."""
        pool.watcher = self

    def __len__(self) -> int:
        """Return how many blocks the tree holds."""
        return sum(len(part.blocks) for part in self._parts.values())

    def match(self, key: bytes, tokens: NDArray[np.int32], limit: int, turns: Turns = ()) -> NDArray[np.int32]:
        """Return the blocks of the longest usable prefix of ``tokens`` (n,), int32, in order.

        The result covers whole blocks, of at most ``limit`` tokens: (blocks,), or with windows tables (groups,
        blocks) in which near entries before the window of the end are -1. The caller has a reference to each and
        releases them like its own. It must not write to them.
        """
        self._calls = used = self._calls + 1
        nodes, needs = self._path(key, tokens, limit, turns), self.needs
        for node in nodes:
            node.used = used
        tables = _lines_of(nodes, needs.wide)
        if needs.near:
            first = needs.first(BLOCK_TOKENS * len(nodes))
            near = [node.near for node in nodes[first:] if node.near is not None]  # each has near blocks
            for part in near:
                part.used = used
            wide, tables = tables, np.full((needs.groups, len(nodes)), -1, np.int32)
            tables[: needs.wide], tables[needs.wide :, first:] = wide, _lines_of(near, needs.near)
        blocks = tables if needs.near else tables[0]
        self.pool.retain(held(blocks))
        return blocks

    def peek(self, key: bytes, tokens: NDArray[np.int32], limit: int, turns: Turns = ()) -> int:
        """Return how many tokens ``match`` would cover, without any effect on use or counts."""
        return BLOCK_TOKENS * len(self._path(key, tokens, limit, turns))

    def insert(self, key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32], turns: Turns = ()) -> int:
        """Keep the blocks of a prefix and return how many of them the tree took.

        tokens: (n,); a last block that they do not fill is left out. blocks: (at least n / 16,) the caller's, written
        by committed steps and final; with windows (groups, at least n / 16), near ones as far as the caller has them,
        else -1.

        Blocks of the same prefix that are already in the tree stay, and the caller's are left alone. Raises
        ValueError, and takes nothing, for a block without holders or one that is in the tree under another prefix.
        """
        self._calls = used = self._calls + 1
        tables, wide = blocks if blocks.ndim == 2 else blocks[None], self.needs.wide
        pieces = _pieces_of(tokens, BLOCK_TOKENS * tables.shape[1], turns)
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
        near = _lacking(path, tables[wide:, : len(path) + len(pieces)]) if self.needs.near else {}
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
            self._parts[own[0]] = path[index].near = WindowBlocks(path[index], own, used)
        for seen in path[self.needs.first(BLOCK_TOKENS * len(path)) :] if self.needs.near else ():
            if seen.near is not None:
                seen.near.used = used
        self._prune(node)
        return taken

    def evict(self, count: int) -> int:
        """Free at least ``count`` blocks that only the tree holds, if there are enough; return how many.

        The least recently used go first, and leaves before their parents. A node frees all of its blocks: with one
        group, ``count`` is never exceeded.
        """
        gone: list[int] = []
        freed = 0
        while freed < count and self._heap:
            used, _, _, part = heapq.heappop(self._heap)
            part.is_queued = False
            if not _is_evictable(part):
                continue  # it is queued again once it may be evicted
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
        """Remove all prefixes of a key, even with blocks that are held; return the number of blocks."""
        root = self._roots.pop(key, None)
        return 0 if root is None else self._forget([root])

    def clear(self) -> None:
        """Remove all prefixes."""
        roots = list(self._roots.values())
        self._roots.clear()
        self._forget(roots)

    def entries(self) -> Iterator[Entry]:
        """Yield every node, each after its parent, the oldest root first; the tree must not change meanwhile."""
        spans = deque(self._roots.items())  # the key of each root, or from a turn on, and the first node
        while spans:
            key, first = spans.popleft()
            stack = [(first, -1 if first.parent is None else 0)]
            while stack:
                node, depth = stack.pop()
                if node.parent is not None:
                    near = () if node.near is None else node.near.blocks
                    yield Entry(key, depth, node.tokens[-_PIECE:], node.blocks, near)
                for child in node.children.values():
                    if mark := child.tokens[:-_PIECE]:
                        spans.append((turned_key(key, _tokens_to(node, depth + 1), mark), child))
                    else:
                        stack.append((child, depth + 1))

    # ------------------------------------------------------------------------------------------ the pool's watcher ---

    def shared(self, blocks: list[int]) -> None:
        """Note blocks that gained another holder."""
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

    def _path(self, key: bytes, tokens: NDArray[np.int32], limit: int, turns: Turns) -> list[Node]:
        """Return the nodes of the longest usable prefix."""
        nodes: list[Node] = []
        root = self._roots.get(key)
        if root is None:
            return nodes
        children = root.children
        for piece in _pieces_of(tokens, limit, turns):
            node = children.get(piece)
            if node is None:
                break
            nodes.append(node)
            children = node.children
        if not self.needs.near:
            return nodes
        usable = begin = 0  # nodes up to the last usable end; the first with all near blocks
        for count, node in enumerate(nodes, 1):
            if node.near is None:
                begin = count
            if self.needs.first(BLOCK_TOKENS * count) >= begin:
                usable = count
        return nodes[:usable]

    def _claim(self, parts: list[tuple[int, ...]]) -> int:
        """Hold new blocks; return how many. Raises ValueError, and holds none, if one may not be taken."""
        blocks = [block for part in parts for block in part]
        if len({*blocks}) != len(blocks) or not self._parts.keys().isdisjoint(blocks):
            raise ValueError("a block of the prefix is in the tree with another one")
        self.pool.retain(np.array(blocks, np.int32))
        self.insertions += len(blocks)
        return len(blocks)

    def _give(self, part: Node | WindowBlocks) -> tuple[int, ...]:
        """Remove a node's unshared blocks, or all blocks of a removed node; return them, to be released."""
        blocks, part.blocks = part.blocks, ()
        if blocks:
            del self._parts[blocks[0]]
        if isinstance(part, Node):
            is_free = not part.references
        else:
            is_free = not part.is_shared
            part.node.near = None
        self.evictable -= len(blocks) if is_free else 0
        return blocks

    def _prune(self, node: Node) -> None:
        """Remove a node, and nodes above it, that have neither blocks nor descendants with blocks."""
        while not (node.children or node.blocks or node.near):
            parent = node.parent
            if parent is None:
                self._roots.pop(node.tokens, None)
                return
            del parent.children[node.tokens]
            self._queue(parent)
            node = parent

    def _forget(self, roots: list[Node]) -> int:
        """Release the blocks below removed roots; return the number of blocks."""
        gone: list[int] = []
        for node in (one for root in roots for one in _below(root)):
            if node.near is not None:
                gone += self._give(node.near)
            gone += self._give(node)
        self._heap = [entry for entry in self._heap if entry[3].blocks]
        heapq.heapify(self._heap)
        self.pool.release(np.array(gone, np.int32))
        return len(gone)

    def _grip(self, node: Node) -> None:
        """Add a reason to keep a node, and thereby its ancestors."""
        while node.parent is not None:
            node.references += 1
            if node.references > 1:
                return
            self.evictable -= len(node.blocks)
            node = node.parent

    def _let_go(self, node: Node) -> None:
        """Remove a reason to keep a node, and thereby its ancestors."""
        while node.parent is not None:
            node.references -= 1
            if node.references:
                return
            self.evictable += len(node.blocks)
            self._queue(node)
            node = node.parent

    def _queue(self, part: Node | WindowBlocks) -> None:
        """Put a part in the heap if it is evictable."""
        if not part.is_queued and _is_evictable(part):
            part.is_queued = True
            self._entries += 1
            heapq.heappush(self._heap, (part.used, isinstance(part, Node), self._entries, part))


def turned_key(key: bytes, tokens: bytes, mark: bytes) -> bytes:
    """Return the key of the blocks behind a turn, as if a prefix began there: (32,) bytes.

    tokens: all before the turn, from the beginning or the previous turn on, whose blocks have ``key``.
    """
    import hashlib  # slow: it loads OpenSSL

    return hashlib.sha256(key + mark + tokens).digest()


def _pieces_of(tokens: NDArray[np.int32], limit: int, turns: Turns) -> list[bytes]:
    """Return the tokens of each whole block, at most ``limit`` tokens in all, where the path turns after its mark."""
    count = max(0, min(limit, len(tokens))) // BLOCK_TOKENS
    data = tokens[: count * BLOCK_TOKENS].astype(np.int32, copy=False).tobytes()
    pieces = [data[begin : begin + _PIECE] for begin in range(0, len(data), _PIECE)]
    for block, mark in turns:
        if block < count:
            pieces[block] = mark + pieces[block]
    return pieces


def _is_evictable(part: Node | WindowBlocks) -> bool:
    """Return whether a part may be evicted: no other holder, and for a node no descendant that must stay."""
    if isinstance(part, Node):
        return bool(part.blocks) and not (part.children or part.references)
    return bool(part.blocks) and not part.is_shared


def _lines_of(parts: Sequence[Part], groups: int) -> NDArray[np.int32]:
    """Return the blocks of several parts, (groups, parts)."""
    return np.array([block for part in parts for block in part.blocks], np.int32).reshape(len(parts), groups).T


def _lacking(path: list[Node], lines: NDArray[np.int32]) -> dict[int, tuple[int, ...]]:
    """Return the near blocks (groups, blocks) that exist but are missing in the nodes of a path, by place."""
    return {
        index: tuple(column)
        for index, column in enumerate(lines.T.tolist())
        if column[0] >= 0 and (index >= len(path) or path[index].near is None)
    }


def _below(root: Node) -> Iterator[Node]:
    """Yield the nodes below a root, each after its parent."""
    stack = [*root.children.values()]
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def _tokens_to(node: Node, count: int) -> bytes:
    """Return the tokens of the last ``count`` nodes of the path that ends with ``node``."""
    found: list[bytes] = []
    while len(found) < count and node.parent is not None:
        found.append(node.tokens[-_PIECE:])
        node = node.parent
    return b"".join(reversed(found))
