"""The prefix tree against a model that keeps every prefix in a dictionary, and the key of a prefix."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from drawn import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from infeng_core.scheduling.blocks import BLOCK_TOKENS, BlockPool
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import prefix_key

KEY, OTHER = b"k" * 32, b"o" * 32

Path = tuple[bytes, tuple[int, ...]]
"""A key and the pieces of a prefix; piece n stands for 16 tokens n."""


def tokens_of(pieces: tuple[int, ...] | list[int], rest: int = 0) -> NDArray[np.int32]:
    """Return 16 tokens for each piece, and ``rest`` tokens that fill no block."""
    return np.concatenate([np.repeat(np.array(pieces, np.int32), BLOCK_TOKENS), np.full(rest, 9, np.int32)])


def ids(*blocks: int) -> NDArray[np.int32]:
    return np.array(blocks, np.int32)


@dataclass(eq=False)
class Request:
    key: bytes
    pieces: tuple[int, ...]
    rest: int
    blocks: NDArray[np.int32] = field(default_factory=lambda: ids())


class Machine(RuleBasedStateMachine):
    """Requests come, are committed, and go; the model is a block and a time of use for each prefix."""

    TOTAL = 12

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.TOTAL)
        self.tree = PrefixTree(self.pool)
        self.kept: dict[Path, int] = {}
        self.used: dict[Path, int] = {}
        self.now = 0
        self.written: dict[int, Path] = {}  # what each block holds
        self.requests: list[Request] = []

    def idle(self) -> set[Path]:
        """Prefixes without other holders, of themselves and of every longer one."""
        held = {block for request in self.requests for block in request.blocks.tolist()}
        return {
            path
            for path in self.kept
            if not any(
                block in held
                for (key, pieces), block in self.kept.items()
                if key == path[0] and pieces[: len(path[1])] == path[1]
            )
        }

    def evict(self, count: int) -> int:
        """Take idle leaves from the model, the least recently used first."""
        for done in range(count):
            idle = self.idle()
            inner = {(key, pieces[:-1]) for key, pieces in self.kept}
            if not idle - inner:
                return done
            path = min(idle - inner, key=lambda path: self.used[path])
            del self.kept[path]
        return count

    def matched(self, request: Request, most: int) -> list[int]:
        found = []
        for n in range(1, min(most, len(request.pieces)) + 1):
            path = (request.key, request.pieces[:n])
            if path not in self.kept:
                break
            self.used[path] = self.now
            found.append(self.kept[path])
        return found

    @rule(
        key=st.sampled_from([KEY, OTHER]),
        pieces=st.lists(st.integers(0, 1), max_size=5),
        rest=st.integers(0, 15),
        less=st.integers(0, 40),
    )
    def start(self, key, pieces, rest, less):
        request = Request(key, tuple(pieces), rest)
        tokens = tokens_of(request.pieces, rest)
        self.now += 1
        found = self.matched(request, (len(tokens) - less) // BLOCK_TOKENS)
        assert self.tree.peek(key, tokens, len(tokens) - less) == BLOCK_TOKENS * len(found)
        blocks = self.tree.match(key, tokens, len(tokens) - less)
        assert blocks.dtype == np.int32
        assert blocks.tolist() == found
        assert all(self.written[b] == (key, request.pieces[: n + 1]) for n, b in enumerate(found)), "a wrong block"
        request.blocks = blocks
        self.requests.append(request)
        missing = len(request.pieces) - len(blocks)
        if missing > self.pool.free + self.tree.evictable:
            self.requests.remove(request)
            self.pool.release(blocks)
            return
        lacking = max(0, missing - self.pool.free)
        assert self.tree.evict(lacking) == self.evict(lacking) == lacking
        new = self.pool.allocate(missing)
        assert not {*new.tolist()} & {*self.kept.values()}, "a block of the tree was handed out"
        for n, block in enumerate(new.tolist(), len(blocks)):
            self.written[block] = (key, request.pieces[: n + 1])
        request.blocks = np.concatenate([blocks, new])

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(0, 5))
    def commit(self, data, count):
        request = data.draw(st.sampled_from(self.requests))
        pieces = request.pieces[:count]
        rest = request.rest if count >= len(request.pieces) else 3
        self.now += 1
        taken = self.tree.insert(request.key, tokens_of(pieces, rest), request.blocks)
        known = len(self.matched(Request(request.key, pieces, 0), len(pieces)))
        assert taken == len(pieces) - known
        for n in range(known, len(pieces)):
            self.kept[request.key, pieces[: n + 1]] = int(request.blocks[n])
            self.used[request.key, pieces[: n + 1]] = self.now

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data):
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.pool.release(request.blocks)

    @rule(count=st.integers(0, 6))
    def free(self, count):
        assert self.tree.evict(count) == self.evict(count)

    @rule(key=st.sampled_from([KEY, OTHER]))
    def drop(self, key):
        gone = [path for path in self.kept if path[0] == key]
        assert self.tree.drop(key) == len(gone)
        for path in gone:
            del self.kept[path]

    @rule()
    def clear(self):
        self.tree.clear()
        self.kept.clear()

    @invariant()
    def blocks_are_conserved(self):
        held = [block for request in self.requests for block in request.blocks.tolist()]
        for block in range(self.TOTAL):
            assert self.pool.references(block) == held.count(block) + [*self.kept.values()].count(block)
        assert self.pool.free == self.TOTAL - len({*held, *self.kept.values()})

    @invariant()
    def the_tree_is_the_model(self):
        assert len(self.tree) == len(self.kept)
        assert self.tree.evictable == len(self.idle())
        path: list[int] = []
        seen = {}
        for entry in self.tree.entries():
            piece = np.frombuffer(entry.tokens, np.int32)
            path[entry.depth :] = [int(piece[0])]
            assert len(path) == entry.depth + 1
            [seen[entry.key, tuple(path)]] = entry.blocks
            assert not entry.near
        assert seen == self.kept

    @invariant()
    def nothing_is_kept_for_keys_without_blocks(self):
        assert self.tree._roots.keys() == {key for key, _ in self.kept}
        assert len(self.tree._heap) <= len(self.kept)


TestPrefixTree = Machine.TestCase
TestPrefixTree.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_a_block_that_is_not_full_is_neither_kept_nor_found():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    blocks = pool.allocate(2)
    tokens = tokens_of([1], rest=15)
    assert tree.insert(KEY, tokens, blocks) == 1
    assert tree.match(KEY, tokens, len(tokens)).tolist() == blocks[:1].tolist()
    assert tree.match(KEY, tokens, 15).tolist() == []


def test_the_first_writer_of_a_prefix_keeps_its_blocks_in_the_tree():
    pool = BlockPool(8)
    tree = PrefixTree(pool)
    first, second = pool.allocate(2), pool.allocate(3)
    tree.insert(KEY, tokens_of([1, 2]), first)
    assert tree.insert(KEY, tokens_of([1, 2, 3]), second) == 1
    assert tree.match(KEY, tokens_of([1, 2, 3]), 99).tolist() == [*first.tolist(), int(second[2])]


def test_a_node_stays_while_a_request_holds_a_block_below_it_but_not_its_own():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    first, second = pool.allocate(1), pool.allocate(2)
    tree.insert(KEY, tokens_of([1]), first)
    tree.insert(KEY, tokens_of([1, 2]), second)
    pool.release(first)
    assert (tree.evictable, tree.evict(4)) == (0, 0)
    pool.release(second)
    assert (tree.evictable, tree.evict(4), pool.free) == (2, 2, 4)


def test_a_reused_prefix_is_evicted_after_later_unused_ones():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    for piece in (1, 2):
        block = pool.allocate(1)
        tree.insert(KEY, tokens_of([piece]), block)
        pool.release(block)
    pool.release(tree.match(KEY, tokens_of([1]), 16))
    assert tree.peek(KEY, tokens_of([2]), 16) == 16, "a look is no use"
    tree.evict(1)
    assert (tree.peek(KEY, tokens_of([1]), 16), tree.peek(KEY, tokens_of([2]), 16)) == (16, 0)


def test_a_prefix_that_is_inserted_again_was_used_then():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    blocks = [pool.allocate(1), pool.allocate(1)]
    for piece in (0, 1, 0):
        tree.insert(KEY, tokens_of([piece]), blocks[piece])
    pool.release(np.concatenate(blocks))
    tree.evict(1)
    assert (tree.peek(KEY, tokens_of([0]), 16), tree.peek(KEY, tokens_of([1]), 16)) == (16, 0)


def test_a_block_that_is_held_without_being_looked_up_stays():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    blocks = pool.allocate(2)
    tree.insert(KEY, tokens_of([0, 1]), blocks)
    pool.release(blocks)
    pool.retain(blocks[:1])
    assert (tree.evictable, tree.evict(2)) == (1, 1)


def test_requests_with_other_keys_share_nothing():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    tree.insert(KEY, tokens_of([1]), pool.allocate(1))
    assert len(tree.match(OTHER, tokens_of([1]), 16)) == 0


def test_a_block_cannot_stand_for_two_prefixes():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    blocks = pool.allocate(2)
    tree.insert(KEY, tokens_of([1]), blocks)
    with pytest.raises(ValueError, match="in the tree"):
        tree.insert(KEY, tokens_of([2, 3]), blocks)
    with pytest.raises(ValueError, match="in the tree"):
        tree.insert(KEY, tokens_of([2, 3]), ids(3, 3))
    with pytest.raises(ValueError, match="not in use"):
        tree.insert(KEY, tokens_of([2]), ids(3))
    assert (len(tree), pool.references(3)) == (1, 0)


def test_tokens_of_another_width_are_the_same_tokens():
    pool = BlockPool(4)
    tree = PrefixTree(pool)
    tree.insert(KEY, tokens_of([1, 2]), pool.allocate(2))
    assert tree.peek(KEY, tokens_of([1, 2]).astype(np.int64), 32) == 32
    assert tree.peek(KEY, np.repeat(tokens_of([1, 2]), 2)[::2], 32) == 32


PARTS = {
    "model_id": "m", "cache_format": "f32", "numerics": "exact", "adapters": [("a", 1.0), ("b", 0.5)], "salt": "s",
}  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"model_id": "n"},
        {"cache_format": "int8"},
        {"numerics": "fast"},
        {"salt": ""},
        {"adapters": []},
        {"adapters": [("a", 1.0)]},
        {"adapters": [("b", 0.5), ("a", 1.0)]},
        {"adapters": [("a", 0.5), ("b", 0.5)]},
        {"adapters": [("a", np.nextafter(1.0, 2)), ("b", 0.5)]},
        {"model_id": "mf", "cache_format": "32"},
        {"numerics": "exacts", "salt": ""},
        {"salt": 's","t'},
        {"salt": "\ud800"},
    ],
    ids=str,
)
def test_requests_that_differ_in_any_part_have_other_keys(other):
    key = prefix_key(**PARTS)
    assert len(key) == 32
    assert prefix_key(**{**PARTS, **other}) != key
    assert prefix_key(**PARTS) == key


def test_the_key_is_the_same_in_every_process():
    assert prefix_key("m", "f32", "exact", (), "").hex()[:16] == "394a31755fde6212"
