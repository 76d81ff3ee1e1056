"""Layers with a window: groups, how many blocks sequences need, and that they hold no more than that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from scheduler_parts import Cache, answer, check, sequence

from infeng_core.batch import Limits
from infeng_core.models.groups import LayerGroup, layer_groups, places
from infeng_core.scheduling.blocks import BlockPool, blocks_for
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import tree_of
from infeng_core.scheduling.tables import Needs


@dataclass(frozen=True)
class Shape:
    """What groups are made of."""

    windows: tuple[int, ...]
    max_positions: int = 1000

    @property
    def layers(self) -> int:
        return len(self.windows)

    def window(self, layer: int) -> int:
        return self.windows[layer]


def grouped(*windows: int) -> tuple[LayerGroup, ...]:
    shape: Any = Shape(windows)
    return layer_groups(shape)


def test_layers_with_and_without_windows_have_groups_of_equal_size():
    assert grouped(0, 0, 0) == (LayerGroup(0, (0, 1, 2)),)
    assert grouped(8, 8) == (LayerGroup(8, (0, 1)),)
    assert grouped(8, 0, 8, 0) == (LayerGroup(0, (1, 3)), LayerGroup(8, (0, 2)))
    three = grouped(*[9, 9, 9, 0] * 8)
    assert [(group.window, len(group.layers)) for group in three] == [(0, 8), (9, 12), (9, 12)]
    assert sorted(layer for group in three for layer in group.layers) == [*range(32)]


def test_windows_of_several_sizes_are_kept_for_the_widest_and_one_as_wide_as_the_context_is_none():
    assert grouped(8, 20) == (LayerGroup(20, (0, 1)),)
    assert grouped(1000, 1000) == (LayerGroup(0, (0, 1)),)
    assert grouped(0, 8, 1000, 8) == (LayerGroup(0, (0, 2)), LayerGroup(8, (1, 3)))


def test_a_few_windows_among_many_layers_are_not_worth_their_padding():
    assert grouped(8, *[0] * 31) == (LayerGroup(0, tuple(range(32))),)


@pytest.mark.parametrize("wide", [1, 2, 5, 8, 12])
def test_every_layer_has_a_place_and_padding_is_bounded(wide: int):
    for near in range(1, 30):
        groups = grouped(*[0] * wide, *[8] * near)
        assert sorted(layer for group in groups for layer in group.layers) == [*range(wide + near)]
        assert len(groups) * places(groups) <= (wide + near) * 1.125
        assert [group.window for group in groups] == sorted(group.window for group in groups)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 64])
def test_from_any_position_a_whole_step_of_rows_has_blocks(window: int, rows: int):
    needs = Needs((window,), rows)
    for computed in range(200):
        first = needs.first(computed)
        assert 16 * first <= max(0, computed // 16 * 16 - window + 1) < 16 * first + 16
        assert 16 * needs.end(first, 1000) >= computed + rows
        assert needs.end(first, 1000) - first <= blocks_for(window + rows) + 2


@pytest.mark.parametrize("windows", [(0,), (20,), (0, 20), (0, 0, 20), (0, 20, 20)])
def test_the_longest_sequence_fits_and_a_longer_one_does_not(windows: tuple[int, ...]):
    needs = Needs(windows, 16)
    for blocks in range(len(windows), 60):
        longest = needs.longest(blocks)
        if longest is None:
            assert windows == (20,)
            assert needs.most(1 << 20) <= blocks
        else:
            assert needs.most(longest) <= blocks < needs.most(longest + 16 * len(windows))


@pytest.mark.parametrize("windows", [(20,), (0, 20), (0, 20, 20)])
def test_a_text_of_many_windows_runs_in_the_blocks_of_one(windows: tuple[int, ...]):
    needs = Needs(windows, 16)
    total = needs.most(480)
    limits = Limits(16, 2, 2, 480, total, windows)
    pool = BlockPool(total)
    scheduler, cache = Scheduler(limits, pool, FirstCome(limits)), Cache(pool, windows, 480)
    one = sequence(0, [1, 2, 0, 2] * 100, 80)
    scheduler.add(one, 0.0)
    held = []
    while scheduler.running or scheduler.waiting:
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        check(batch, limits)
        gained = answer(batch, cache.run(batch))
        scheduler.commit(batch, gained, [one] if one.length + sum(map(len, gained)) == 480 else [], 0.0)
        held.append((one.computed, total - pool.free))
    assert one.length == 480
    assert one.preemptions == 0
    near = [used - needs.wide * blocks_for(400) for computed, used in held if 60 < computed < 380]
    assert max(near) <= needs.near * (blocks_for(20 + 16) + 2), "flat, however long the text"
    assert pool.free == total


def test_two_long_texts_side_by_side_make_way_for_each_other_and_both_end():
    windows = (0, 20)
    limits = Limits(16, 3, 3, 320, Needs(windows, 16).most(320) + 6, windows)
    pool = BlockPool(limits.kv_blocks)
    scheduler, cache = Scheduler(limits, pool, FirstCome(limits)), Cache(pool, windows, 320)
    running = {sequence(i, [i, 2, 1] * 60, 100): 280 for i in range(3)}
    for one in running:
        scheduler.add(one, 0.0)
    for _ in range(3000):
        batch = scheduler.next_batch(0.0)
        if batch is None:
            break
        gained = answer(batch, cache.run(batch))
        drawn = [segment.sequence for segment in batch.segments if segment.sampled]
        new = dict(zip(drawn, map(len, gained), strict=True))
        scheduler.commit(batch, gained, [one for one in drawn if one.length + new[one] == running[one]], 0.0)
    assert [one.length for one in running] == [280] * 3
    assert pool.free == pool.total


@pytest.mark.parametrize("windows", [(20,), (0, 20)])
def test_who_parts_from_a_long_prompt_anywhere_finds_what_it_needs(windows: tuple[int, ...]):
    limits = Limits(16, 1, 1, 320, 200, windows)
    pool = BlockPool(limits.kv_blocks)
    prefixes = PrefixCache(tree_of(pool, limits), lambda one: b"k")
    scheduler, cache = Scheduler(limits, pool, FirstCome(limits), prefixes=prefixes), Cache(pool, windows, 320)
    prompt = [i * i % 3 for i in range(300)]
    cached = []
    for id_, length in enumerate((300, 40, 100, 170, 299, 300)):
        one = sequence(id_, prompt[:length], 1)
        scheduler.add(one, 0.0)
        while (batch := scheduler.next_batch(0.0)) is not None:
            gained = answer(batch, cache.run(batch))
            scheduler.commit(batch, gained, [one] if gained else [], 0.0)
        cached.append(one.cached)
    assert cached == [0, 32, 96, 160, 288, 288]
    assert scheduler.free_blocks == pool.total
