"""The prefix cache of the scheduler: blocks are found once, and held until they are taken."""

from __future__ import annotations

import numpy as np
from scheduler_parts import sequence

from infeng_core.batch import RunningRequest
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache

PROMPT = [1] * 40


class Keys:
    """What sequences share under, which changes."""

    key: bytes | None = b"before"

    def __call__(self, sequence: RunningRequest) -> bytes | None:
        return self.key


def made() -> tuple[BlockPool, PrefixCache, Keys]:
    """Return a cache in which two blocks of PROMPT are known under the key."""
    pool, keys = BlockPool(8), Keys()
    cache = PrefixCache(PrefixTree(pool), keys)
    computed = sequence(0, PROMPT, 1)
    computed.blocks, computed.computed = pool.allocate(3), 39
    cache.keep(computed)
    pool.release(computed.blocks)
    return pool, cache, keys


def test_found_blocks_are_taken_without_a_second_search(monkeypatch):
    pool, cache, _ = made()
    searches, match = [], cache.tree.match
    monkeypatch.setattr(cache.tree, "match", lambda *words: searches.append(words) or match(*words))
    one = sequence(1, PROMPT, 1)
    found = cache.find(one)
    assert cache.tree.evictable == 0
    taken = cache.take(one)
    assert np.array_equal(found, taken)
    assert len(taken) == 2
    assert len(searches) == 1
    assert [pool.references(block) for block in taken] == [2, 2]


def test_found_blocks_that_are_not_taken_are_released():
    _, cache, _ = made()
    cache.find(sequence(1, PROMPT, 1))
    cache.find(sequence(2, [2] * 40, 1))
    assert cache.tree.evictable == 2
    cache.find(sequence(3, PROMPT, 1))
    cache.let_go()
    cache.let_go()
    assert cache.tree.evictable == 2


def test_blocks_found_before_a_change_of_adapters_are_not_used():
    _, cache, keys = made()
    one = sequence(1, PROMPT, 1)
    assert len(cache.find(one)) == 2
    for keys.key in (b"after", None):
        assert len(cache.take(one)) == 0
        assert cache.tree.evictable == 2


def test_without_prefixes_nothing_is_shared():
    pool = BlockPool(8)
    cache = PrefixCache.none(pool)
    one = sequence(0, PROMPT, 1)
    one.blocks, one.computed = pool.allocate(3), 39
    cache.keep(one)
    assert len(cache.take(one)) == cache.cached(one) == cache.restore(one, 0) == len(cache.tree) == 0
