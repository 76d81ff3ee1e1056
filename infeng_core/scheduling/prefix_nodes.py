"""The parts of the prefix tree: nodes, the blocks that they have, and tokens cut into their pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import BLOCK_TOKENS

_PIECE = 4 * BLOCK_TOKENS  # bytes of a block's tokens


class Part:
    """The blocks of a node for the groups with a window; as a ``Node``, for the groups that see all."""

    __slots__ = ("blocks", "is_queued", "is_shared", "used")

    def __init__(self, blocks: tuple[int, ...], used: int) -> None:
        self.blocks = blocks
        self.used = used  # the number of the last call that came by
        self.is_shared = bool(blocks)  # held beside the tree too; at first the caller of ``insert`` does
        self.is_queued = False  # it has a place in the heap


class Near(Part):
    """Blocks of the groups with a window."""

    __slots__ = ("node",)

    def __init__(self, node: Node, blocks: tuple[int, ...], used: int) -> None:
        super().__init__(blocks, used)
        self.node = node


class Node(Part):
    """A block of tokens in its place, with the blocks of the groups that see all; a root has none."""

    __slots__ = ("children", "grips", "near", "parent", "tokens")

    def __init__(self, parent: Node | None, tokens: bytes, blocks: tuple[int, ...], used: int) -> None:
        super().__init__(blocks, used)
        self.parent = parent
        self.tokens = tokens  # of a root: its key
        self.children: dict[bytes, Node] = {}
        self.near: Near | None = None
        self.grips = int(self.is_shared)  # is_shared + how many children have any; with one or more, the node stays


def pieces_of(tokens: NDArray[np.int32], limit: int) -> list[bytes]:
    """Return the tokens of each whole block, at most ``limit`` tokens in all."""
    count = max(0, min(limit, len(tokens))) // BLOCK_TOKENS
    data = tokens[: count * BLOCK_TOKENS].astype(np.int32, copy=False).tobytes()
    return [data[begin : begin + _PIECE] for begin in range(0, len(data), _PIECE)]


def may_go(part: Node | Near) -> bool:
    """Return whether nothing keeps a part: neither holders, nor for a node any below it."""
    if isinstance(part, Node):
        return bool(part.blocks) and not (part.children or part.grips)
    return bool(part.blocks) and not part.is_shared


def lines_of(parts: Sequence[Part], groups: int) -> NDArray[np.int32]:
    """Return the blocks of several parts, (groups, parts)."""
    return np.array([block for part in parts for block in part.blocks], np.int32).reshape(len(parts), groups).T


def lacking(path: list[Node], lines: NDArray[np.int32]) -> dict[int, tuple[int, ...]]:
    """Return the near blocks (groups, blocks) that are there, and not yet in the nodes of a path, by their place."""
    return {
        index: tuple(column)
        for index, column in enumerate(lines.T.tolist())
        if column[0] >= 0 and (index >= len(path) or path[index].near is None)
    }


def below(root: Node) -> Iterator[tuple[Node, int]]:
    """Give the nodes below a root and how many are before each on its path, each after its parent."""
    stack = [(child, 0) for child in root.children.values()]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in node.children.values()]
