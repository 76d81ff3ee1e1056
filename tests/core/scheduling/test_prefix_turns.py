"""Prefixes in which an adapter begins to act: blocks before it are everybody's, blocks from it on are its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_prefix_store.store import DiskStore
from numpy.typing import NDArray
from scheduler_parts import sequence

from infeng_core.batch import RunningRequest
from infeng_core.scheduling.blocks import BLOCK_TOKENS, BlockPool
from infeng_core.scheduling.prefix import Entry, PrefixTree, Turns
from infeng_core.scheduling.prefix_cache import PrefixCache, turn_mark

KEY = b"k" * 32
ONE, OTHER = b"1" * 32, b"2" * 32
LARGE = 1 << 20


def tokens_of(pieces: list[int]) -> NDArray[np.int32]:
    return np.repeat(np.array(pieces, np.int32), BLOCK_TOKENS)


def add(tree: PrefixTree, pieces: list[int], turns: Turns = ()) -> list[int]:
    """Keep a prefix as one that computed what was missing; return its blocks."""
    known = tree.match(KEY, tokens_of(pieces), LARGE, turns)
    blocks = np.concatenate([known, tree.pool.allocate(len(pieces) - len(known))])
    tree.insert(KEY, tokens_of(pieces), blocks, turns)
    tree.pool.release(blocks)
    return [int(block) for block in blocks]


def known(tree: PrefixTree, pieces: list[int], turns: Turns = ()) -> int:
    return tree.peek(KEY, tokens_of(pieces), LARGE, turns) // BLOCK_TOKENS


def test_blocks_before_a_turn_are_shared_and_later_ones_are_not() -> None:
    tree = PrefixTree(BlockPool(32))
    pieces = [1, 2, 3, 4]
    mine = add(tree, pieces, [(2, ONE)])
    assert [known(tree, pieces, turns) for turns in ([], [(2, ONE)], [(2, OTHER)], [(1, ONE)], [(3, ONE)])] == [
        *(2, 4, 2, 1, 2)
    ]
    base = add(tree, pieces)
    assert base[:2] == mine[:2] and not {*base[2:]} & {*mine[2:]}
    assert known(tree, pieces, [(3, ONE)]) == 3
    assert known(tree, [1, 2, 3, 9], [(2, ONE)]) == 3
    assert known(tree, pieces, [(9, ONE)]) == 4, "a turn behind the prefix is none of it"
    first = add(tree, pieces, [(0, ONE)])
    assert not {*first} & {*base, *mine}


def test_a_prefix_turns_once_for_each_adapter() -> None:
    tree = PrefixTree(BlockPool(32))
    both = [(1, ONE), (3, OTHER)]
    mine = add(tree, [1, 2, 3, 4, 5], both)
    assert known(tree, [1, 2, 3, 4, 5], both) == 5
    assert known(tree, [1, 2, 3, 4, 5], [(1, ONE)]) == 3
    assert add(tree, [1, 2, 3, 4, 5], [(1, ONE)])[:3] == mine[:3]


def test_the_base_outlives_what_was_computed_upon_it() -> None:
    tree = PrefixTree(BlockPool(32))
    add(tree, [1, 2, 3, 4], [(2, ONE)])
    assert tree.evictable == 4
    assert tree.evict(2) == 2
    assert (known(tree, [1, 2, 3, 4], [(2, ONE)]), known(tree, [1, 2])) == (2, 2)
    assert tree.drop(KEY) == 2
    assert len(tree) == 0 and tree.pool.free == 32


def ways(rng: random.Random) -> list[tuple[list[int], list[tuple[int, bytes]]]]:
    """Return prefixes of few different pieces, with turns at random places."""
    made = []
    for _ in range(8):
        pieces = [rng.randint(0, 1) for _ in range(rng.randint(1, 5))]
        places = sorted(rng.sample(range(5), rng.randint(0, 2)))
        made.append((pieces, [(place, rng.choice([ONE, OTHER])) for place in places]))
    return made


@settings(max_examples=examples(60))
@given(st.integers(0, 1 << 30))
def test_a_store_gives_each_way_back_its_own_blocks(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    cache = np.random.default_rng(seed).integers(0, 256, (64, 8), np.uint8)
    tree = PrefixTree(BlockPool(64))
    written = [(pieces, turns, cache[add(tree, pieces, turns)]) for pieces, turns in ways(rng)]
    store = DiskStore(tmp_path_factory.mktemp("store"), identity="m", block_bytes=8, most_bytes=1 << 20)
    entries = list(tree.entries())
    assert store.save(entries, lambda blocks: cache[blocks]) == len(entries) == len(tree)
    for pieces, turns, expected in written:
        for begin in range(len(pieces) + 1):
            assert restored(store, pieces, turns, begin, cache.shape[1]) == expected[begin:].tolist()


def restored(store: DiskStore, pieces: list[int], turns: Turns, begin: int, width: int) -> list[list[int]]:
    """Return the bytes with which a request that has ``begin`` blocks goes on."""
    fresh = np.zeros((64, width), np.uint8)

    def restore(key: bytes, tokens: NDArray[np.int32], blocks: NDArray[np.int32], first: int) -> int:
        def write_blocks(places: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
            fresh[places] = data

        return store.restore(key, tokens, first, blocks[first:], write_blocks)

    pool = BlockPool(64)
    cache = PrefixCache(PrefixTree(pool), lambda one: KEY, restore, lambda one: turns)
    one: RunningRequest = sequence(1, [*tokens_of(pieces).tolist(), 7], 1)
    one.blocks = pool.allocate(len(pieces) + 1)
    count = cache.restore(one, begin)
    assert cache.cached(one) == BLOCK_TOKENS * (begin + count if count else 0)
    return [fresh[block].tolist() for block in one.blocks[begin : begin + count]]


def test_every_node_is_an_entry_after_its_parent() -> None:
    tree = PrefixTree(BlockPool(64))
    rng = random.Random(5)
    for pieces, turns in ways(rng):
        add(tree, pieces, turns)
    seen: set[tuple[bytes, int]] = set()
    blocks: list[int] = []
    latest: Entry | None = None
    for entry in tree.entries():
        assert len(entry.tokens) == 4 * BLOCK_TOKENS and len(entry.key) == 32
        assert entry.depth == 0 or (entry.key, entry.depth - 1) in seen
        assert latest is None or entry.depth <= (latest.depth + 1 if latest.key == entry.key else 0)
        seen.add((entry.key, entry.depth))
        blocks += entry.blocks
        latest = entry
    assert len(set(blocks)) == len(blocks) == len(tree)


def test_the_mark_tells_contents_weights_order_and_places_apart() -> None:
    uses = [("a", 1.0, 5), ("b", 0.5, 0)]
    others = [
        uses[:1],
        uses[::-1],
        [("a", 1.0, 6), uses[1]],
        [("a", 0.5, 5), uses[1]],
        [("c", 1.0, 5), uses[1]],
    ]
    marks = {turn_mark(one) for one in (uses, *others)}
    assert len(marks) == 6 and all(len(mark) == 32 for mark in marks)
    assert turn_mark(uses).hex() == turn_mark(tuple(uses)).hex()


def test_blocks_found_before_a_change_of_turns_are_not_used() -> None:
    pool = BlockPool(8)
    turns: list[Turns] = [()]
    cache = PrefixCache(PrefixTree(pool), lambda one: KEY, None, lambda one: turns[0])
    computed = sequence(0, [1] * 40, 1)
    computed.blocks, computed.computed = pool.allocate(3), 39
    cache.keep(computed)
    pool.release(computed.blocks)
    one = sequence(1, [1] * 40, 1)
    assert len(cache.find(one)) == 2
    turns[0] = ((1, ONE),)
    assert len(cache.take(one)) == 1


def test_the_keys_behind_a_turn_are_the_same_in_every_process() -> None:
    tree = PrefixTree(BlockPool(8))
    add(tree, [1, 2, 3], [(1, ONE)])
    keys = [entry.key for entry in tree.entries()]
    assert keys[0] == KEY
    assert [key.hex()[:16] for key in keys[1:]] == ["de51353c9f13ea8a"] * 2


def test_the_oldest_root_comes_first_and_turns_after_all_roots() -> None:
    tree = PrefixTree(BlockPool(16))
    for key in (KEY, OTHER * 32):
        tree.insert(key, tokens_of([1, 2]), tree.pool.allocate(2), [(1, ONE)] if key == KEY else ())
    assert [(entry.key in (KEY, OTHER * 32), entry.depth) for entry in tree.entries()] == [
        *((True, 0), (True, 0), (True, 1), (False, 0))
    ]
