"""The prefix tree of models with windows, against a model that checks every prefix."""

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
from infeng_core.scheduling.tables import Needs, held

KEY, OTHER = b"k" * 32, b"o" * 32

Path = tuple[bytes, tuple[int, ...]]
"""A key and the pieces of a prefix; piece n stands for 16 tokens n."""


def tokens_of(pieces: tuple[int, ...] | list[int], rest: int = 0) -> NDArray[np.int32]:
    return np.concatenate([np.repeat(np.array(pieces, np.int32), BLOCK_TOKENS), np.full(rest, 9, np.int32)])


@dataclass(eq=False)
class Request:
    key: bytes
    pieces: tuple[int, ...]
    first: int = 0
    """The first block that it has in groups with a window."""
    tables: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))

    def blocks(self) -> list[int]:
        found: list[int] = held(self.tables).tolist()
        return found


class Machine(RuleBasedStateMachine):
    """Requests come, are committed, leave blocks behind and go."""

    TOTAL = 30
    WINDOWS: tuple[int, ...] = (0, 20)

    def __init__(self) -> None:
        super().__init__()
        self.needs = Needs(self.WINDOWS, 16)
        self.pool = BlockPool(self.TOTAL)
        self.tree = PrefixTree(self.pool, self.needs)
        self.kept: dict[Path, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.written: dict[int, tuple[Path, int]] = {}  # what each block holds, in which group
        self.requests: list[Request] = []

    def look(self) -> None:
        """Take over what the tree says that it has, which the invariants hold against everything else."""
        self.kept.clear()
        path: list[int] = []
        for key, depth, tokens, blocks, near in self.tree.entries():
            path[depth:] = [int(np.frombuffer(tokens, np.int32)[0])]
            assert len(path) == depth + 1
            self.kept[key, tuple(path)] = blocks, near

    def found(self, key: bytes, pieces: tuple[int, ...]) -> int:
        """Return how many blocks can be found, by what is kept."""
        best = 0
        for n in range(1, len(pieces) + 1):
            if (key, pieces[:n]) not in self.kept:
                break
            seen = range(self.needs.first(BLOCK_TOKENS * n), n)
            if all(self.kept[key, pieces[: i + 1]][1] for i in seen):
                best = n
        return best

    @rule(key=st.sampled_from([KEY, OTHER]), pieces=st.lists(st.integers(0, 1), max_size=5), less=st.integers(0, 20))
    def start(self, key, pieces, less):
        self.look()
        request = Request(key, tuple(pieces))
        tokens = tokens_of(pieces, 3)
        limit = len(tokens) - less
        best = self.found(key, request.pieces[: max(0, limit) // BLOCK_TOKENS])
        assert self.tree.peek(key, tokens, limit) == BLOCK_TOKENS * best
        tables = self.tree.match(key, tokens, limit)
        assert tables.shape == (len(self.WINDOWS), best)
        request.first = self.needs.first(BLOCK_TOKENS * best)
        for group, window in enumerate(self.WINDOWS):
            for index, block in enumerate(tables[group].tolist()):
                if window and index < request.first:
                    assert block == -1
                else:
                    assert self.written[block] == ((key, request.pieces[: index + 1]), group)
        request.tables = np.full((len(self.WINDOWS), len(pieces)), -1, np.int32)
        request.tables[:, :best] = tables
        self.requests.append(request)
        missing = len(self.WINDOWS) * (len(pieces) - best)
        if missing > self.pool.free + self.tree.evictable:
            self.end_of(request)
            return
        lacking = max(0, missing - self.pool.free)
        assert self.tree.evict(lacking) >= lacking
        for group in range(len(self.WINDOWS)):
            new = self.pool.allocate(len(pieces) - best)
            request.tables[group, best:] = new
            for index, block in enumerate(new.tolist(), best):
                self.written[block] = (key, request.pieces[: index + 1]), group

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(0, 5))
    def commit(self, data, count):
        request = data.draw(st.sampled_from(self.requests))
        pieces = request.pieces[: max(count, request.first)]
        before = self.tree.insertions
        taken = self.tree.insert(request.key, tokens_of(pieces, 3), request.tables)
        assert self.tree.insertions == before + taken
        self.look()
        for n in range(self.needs.first(BLOCK_TOKENS * len(pieces)), len(pieces)):
            if request.tables[-1, n] >= 0:
                assert self.kept[request.key, pieces[: n + 1]][1], "what it has is kept"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), by=st.integers(1, 3))
    def leave(self, data, by):
        request = data.draw(st.sampled_from(self.requests))
        left = request.tables[self.needs.wide :, request.first : request.first + by]
        self.pool.release(left.ravel())
        request.first += left.shape[1]
        left[:] = -1

    def end_of(self, request: Request) -> None:
        self.requests.remove(request)
        self.pool.release(held(request.tables))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def end(self, data):
        self.end_of(data.draw(st.sampled_from(self.requests)))

    @rule(count=st.integers(0, 9))
    def free(self, count):
        before, wanted = self.pool.free, min(count, self.tree.evictable)
        freed = self.tree.evict(count)
        assert freed >= wanted
        assert self.pool.free == before + freed

    @rule(key=st.sampled_from([KEY, OTHER]))
    def drop(self, key):
        self.look()
        gone = sum(len(blocks) + len(near) for path, (blocks, near) in self.kept.items() if path[0] == key)
        assert self.tree.drop(key) == gone

    @rule()
    def clear(self):
        self.tree.clear()
        assert len(self.tree) == 0

    @invariant()
    def blocks_are_conserved_and_hold_what_their_paths_say(self):
        self.look()
        owned = [block for request in self.requests for block in request.blocks()]
        kept = [block for blocks, near in self.kept.values() for block in blocks + near]
        assert len(kept) == len({*kept}) == len(self.tree)
        for block in range(self.TOTAL):
            assert self.pool.references(block) == owned.count(block) + kept.count(block)
        for path, (blocks, near) in self.kept.items():
            assert len(blocks) == self.needs.wide
            assert len(near) in (0, self.needs.near)
            for group, block in enumerate(blocks):
                assert self.written[block] == (path, group)
            for group, block in enumerate(near, self.needs.wide):
                assert self.written[block] == (path, group)

    @invariant()
    def what_could_be_evicted_is_counted(self):
        self.look()
        owned = {block for request in self.requests for block in request.blocks()}
        could = 0
        for (key, pieces), (blocks, near) in self.kept.items():
            could += 0 if owned & {*near} else len(near)
            below = [
                value[0] for path, value in self.kept.items() if (path[0], path[1][: len(pieces)]) == (key, pieces)
            ]
            could += 0 if owned & {block for part in below for block in part} else len(blocks)
        assert self.tree.evictable == could

    @invariant()
    def a_node_without_blocks_has_others_below(self):
        self.look()
        for (key, pieces), (blocks, near) in self.kept.items():
            assert blocks or near or any(path[0] == key and path[1][:-1] == pieces for path in self.kept)
        assert self.tree._roots.keys() == {key for key, _ in self.kept}


class AllNear(Machine):
    """All layers have a window."""

    TOTAL = 12
    WINDOWS = (20,)


class Narrow(Machine):
    """Windows of two positions, and more groups of each kind."""

    TOTAL = 40
    WINDOWS = (0, 0, 2, 2)


TestMixed = Machine.TestCase
TestMixed.settings = settings(max_examples=examples(80), stateful_step_count=25, deadline=None)
TestAllNear = AllNear.TestCase
TestAllNear.settings = settings(max_examples=examples(80), stateful_step_count=25, deadline=None)
TestNarrow = Narrow.TestCase
TestNarrow.settings = settings(max_examples=examples(80), stateful_step_count=25, deadline=None)


def known(windows: tuple[int, ...], pieces: list[int], first: int = 0, total: int = 64) -> PrefixTree:
    """Return a tree that knows a prefix, of which near blocks before ``first`` were left behind."""
    needs, pool = Needs(windows, 16), BlockPool(total)
    tree = PrefixTree(pool, needs)
    tables = pool.allocate(len(windows) * len(pieces)).reshape(len(windows), -1)
    pool.release(tables[needs.wide :, :first].ravel())
    tables[needs.wide :, :first] = -1
    tree.insert(KEY, tokens_of(pieces), tables)
    pool.release(held(tables))
    return tree


@pytest.mark.parametrize("windows", [(0, 33), (33,)])
def test_a_prefix_is_found_if_all_blocks_in_the_next_rows_window_exist(windows):
    tree = known(windows, [0, 1, 0, 1, 0, 1], first=2)
    ends = {n: tree.peek(KEY, tokens_of([0, 1, 0, 1, 0, 1]), 16 * n) // 16 for n in range(7)}
    # A row at 16 n sees the 32 positions before it, two blocks: those from 2 on serve the ends from 4 on.
    assert ends == {0: 0, 1: 0, 2: 0, 3: 0, 4: 4, 5: 5, 6: 6}


def test_blocks_behind_every_window_are_evicted_before_needed_ones():
    tree = known((0, 17), [0, 1, 0, 1, 0, 1])
    tree.pool.release(held(tree.match(KEY, tokens_of([0, 1, 0, 1, 0, 1]), 96)))
    tree.evict(5)
    assert tree.peek(KEY, tokens_of([0, 1, 0, 1, 0, 1]), 96) == 96
    assert tree.peek(KEY, tokens_of([0, 1, 0, 1, 0, 1]), 95) == 0


def test_held_window_blocks_stay():
    tree = known((0, 17), [0, 1, 0])
    held_now = tree.match(KEY, tokens_of([0, 1, 0]), 48)
    assert held_now[1].tolist()[:2] == [-1, -1]
    assert tree.evictable == 2
    assert tree.evict(9) == 2
    assert tree.peek(KEY, tokens_of([0, 1, 0]), 48) == 48


def test_lost_blocks_return_when_a_sequence_computes_them_again():
    tree = known((0, 17), [0, 1, 0], first=2)
    assert tree.peek(KEY, tokens_of([0, 1]), 32) == 0
    tables = tree.pool.allocate(4).reshape(2, 2)
    assert tree.insert(KEY, tokens_of([0, 1]), tables) == 2, "the wide blocks exist"
    assert tree.peek(KEY, tokens_of([0, 1]), 32) == 32


def test_a_block_cannot_stand_for_two_prefixes_and_nothing_is_kept_of_the_second():
    tree = known((0, 17), [0, 1])
    tables = np.array([[entry.blocks[0] for entry in tree.entries()], [5, 6]], np.int32)
    with pytest.raises(ValueError, match="in the tree"):
        tree.insert(OTHER, tokens_of([0, 1]), tables)
    assert {entry.key for entry in tree.entries()} == {KEY}
