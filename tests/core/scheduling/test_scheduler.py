"""The first-come scheduler under random loads: what it may never do, whatever comes when."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from infeng_core.batch import Batch, Limits, RunningRequest
from infeng_core.errors import RequestError
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BlockPool, blocks_for
from infeng_core.scheduling.drafts import Guesses
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.scheduler import Scheduler


def limits(max_rows: int = 16, running: int = 4, context: int = 128, blocks: int = 12) -> Limits:
    return Limits(max_rows, running, running, context, blocks)


def first_come(bounds: Limits, pool: BlockPool) -> Scheduler:
    return Scheduler(bounds, pool, FirstCome(bounds))


def sequence(id_: int, prompt: int, capacity: int) -> RunningRequest:
    ids = [(7 * id_ + i) % 100 for i in range(prompt)]
    return RunningRequest.start(id_, Request(tuple(ids)), ids, capacity, seed=0)


def check(batch: Batch, bounds: Limits) -> None:
    """Assert what every backend relies on."""
    rows, segments = len(batch.tokens), batch.segments
    assert 1 <= rows <= bounds.max_rows
    assert len(segments) == len(batch.kv_segments) <= bounds.max_segments
    assert len(batch.sample_rows) <= bounds.max_samples
    assert len({id(segment.sequence) for segment in segments}) == len(segments)
    assert segments[0].row_begin == 0
    assert segments[-1].row_end == rows
    expected_samples = []
    for i, segment in enumerate(segments):
        s = segment.sequence
        if i:
            assert segment.row_begin == segments[i - 1].row_end
        begin, end, pos0, offset = batch.kv_segments[i]
        assert (begin, end, pos0) == (segment.row_begin, segment.row_end, segment.pos0)
        assert pos0 == s.computed
        count = end - begin
        np.testing.assert_array_equal(batch.positions[begin:end], np.arange(pos0, pos0 + count))
        known = s.tokens[pos0 : min(pos0 + count, s.length)]
        np.testing.assert_array_equal(batch.tokens[begin : begin + len(known)], known)
        needed = blocks_for(pos0 + count)
        np.testing.assert_array_equal(batch.block_tables[offset : offset + needed], s.blocks[:needed])
        drafted = max(0, pos0 + count - s.length)
        assert pos0 + count < len(s.tokens) or drafted == 0
        np.testing.assert_array_equal(batch.tokens[end - drafted : end], s.draft[:drafted])
        assert segment.sampled == (1 + drafted if pos0 + count >= s.length else 0)
        expected_samples += range(end - segment.sampled, end)
    assert batch.sample_rows.tolist() == expected_samples
    in_use = np.concatenate([segment.sequence.blocks for segment in segments])
    assert len(set(in_use.tolist())) == len(in_use), "two sequences share a block"


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),  # step at which it arrives
        st.integers(1, 60),  # prompt tokens
        st.integers(1, 20),  # new tokens
        st.one_of(st.none(), st.integers(0, 30)),  # step at which it is cancelled
    ),
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(arrivals=arrivals, max_rows=st.integers(1, 40), running=st.integers(1, 6), blocks=st.integers(6, 16))
def test_every_sequence_ends_and_no_block_is_lost(arrivals, max_rows, running, blocks):
    bounds = limits(max_rows, running, blocks=blocks)
    pool = BlockPool(blocks)
    scheduler = first_come(bounds, pool)
    all_sequences = [sequence(i, prompt, prompt + new) for i, (_, prompt, new, _) in enumerate(arrivals)]
    first_step: dict[int, int] = {}
    ended: set[int] = set()
    step = 0
    while len(ended) < len(arrivals):
        for s, (arrives, _, _, cancelled) in zip(all_sequences, arrivals, strict=True):
            if arrives == step:
                s.arrived = float(step)
                scheduler.add(s, s.arrived)
            if cancelled is not None and arrives <= step and cancelled == step and s.id not in ended:
                scheduler.drop(s, 0.0)
                ended.add(s.id)
        batch = scheduler.next_batch(0.0)
        if batch is not None:
            check(batch, bounds)
            for segment in batch.segments:
                first_step.setdefault(segment.sequence.id, step)
            finished = [
                g.sequence for g in batch.segments if g.sampled and g.sequence.length + 1 == len(g.sequence.tokens)
            ]
            scheduler.commit(batch, [[i] for i in range(len(batch.sample_rows))], finished, 0.0)
            ended |= {s.id for s in finished}
        step += 1
        assert step < 10_000, "a sequence never ends"
    arrived = [i for _, i in sorted((arrives, i) for i, (arrives, *_) in enumerate(arrivals))]
    started = [first_step[i] for i in arrived if i in first_step]
    assert started == sorted(started), "somebody was overtaken"
    assert (scheduler.running, scheduler.waiting, pool.free) == (0, 0, blocks)


def test_a_long_prompt_is_cut_and_others_decode_beside_it():
    bounds = limits(max_rows=8, blocks=16)
    scheduler = first_come(bounds, BlockPool(16))
    short, long = sequence(0, 3, 20), sequence(1, 20, 30)
    scheduler.add(short, 0.0)
    first = scheduler.next_batch(0.0)
    assert first is not None
    assert [(g.sequence.id, g.row_end - g.row_begin, g.sampled) for g in first.segments] == [(0, 3, True)]
    scheduler.commit(first, [[42]], [], 0.0)
    scheduler.add(long, 0.0)
    shapes = []
    for token in range(4):
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        check(batch, bounds)
        shapes.append([(g.sequence.id, g.row_end - g.row_begin, g.sampled) for g in batch.segments])
        scheduler.commit(batch, [[token]] * len(batch.sample_rows), [], 0.0)
    assert shapes == [
        [(0, 1, True), (1, 7, False)],
        [(0, 1, True), (1, 7, False)],
        [(0, 1, True), (1, 6, True)],
        [(0, 1, True), (1, 1, True)],
    ]


class Repeat:
    """A drafter that guesses one token over and over."""

    def extend(self, tokens: list[int]) -> None:
        """Learn nothing."""

    def draft(self, count: int) -> list[int]:
        """Return ``count`` guesses."""
        return [1] * count


@settings(max_examples=examples(100), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 6)), min_size=1, max_size=8),
    max_rows=st.integers(1, 40),
    running=st.integers(1, 6),
    more=st.integers(0, 8),
    right=st.lists(st.integers(0, 6), min_size=1, max_size=20),
)
def test_guesses_take_only_rows_that_nobody_needs(sizes, max_rows, running, more, right):
    bounds = replace(limits(max_rows, running, blocks=16), max_samples=min(max_rows, running + more))
    scheduler = first_come(bounds, BlockPool(16))
    for i, (prompt, new, guessed) in enumerate(sizes):
        s = sequence(i, prompt, prompt + new)
        s.guesses = Guesses(Repeat(), guessed) if guessed else None
        scheduler.add(s, 0.0)
    steps = itertools.cycle(right)
    while (batch := scheduler.next_batch(0.0)) is not None:
        check(batch, bounds)
        real = [(g.sequence.id, g.pos0, g.row_end - g.row_begin - max(0, g.sampled - 1)) for g in batch.segments]
        drafts = {g.sequence.id: g.sampled - 1 for g in batch.segments if g.sampled > 1}
        kept = [(s, s.guesses) for s in scheduler._running]
        for s, _ in kept:
            s.guesses = None
        plain = scheduler.next_batch(0.0)
        assert plain is not None
        assert [(g.sequence.id, g.pos0, g.row_end - g.row_begin) for g in plain.segments] == real
        assert len(plain.tokens) + sum(drafts.values()) <= bounds.max_rows
        for s, guesses in kept:
            s.guesses = guesses
        batch = scheduler.next_batch(0.0)
        assert batch is not None
        new = [[1] * min(1 + next(steps), g.sampled) for g in batch.segments if g.sampled]
        sampled = [g.sequence for g in batch.segments if g.sampled]
        ended = [s for s, tokens in zip(sampled, new, strict=True) if s.length + len(tokens) == len(s.tokens)]
        scheduler.commit(batch, new, ended, 0.0)
    assert (scheduler.running, scheduler.waiting) == (0, 0)


def test_the_same_batch_is_made_again_after_a_failed_step():
    scheduler = first_come(limits(), BlockPool(12))
    scheduler.add(sequence(0, 30, 40), 0.0)
    scheduler.add(sequence(1, 2, 4), 0.0)
    once = scheduler.next_batch(0.0)
    assert once is not None
    before = (once.segments, once.tokens.copy(), once.positions.copy(), once.kv_segments.copy())
    again = scheduler.next_batch(0.0)
    assert again is not None
    assert again.segments == before[0]
    for new, old in zip((again.tokens, again.positions, again.kv_segments), before[1:], strict=True):
        np.testing.assert_array_equal(new, old)


def test_a_sequence_that_no_cache_could_hold_is_refused():
    scheduler = first_come(limits(blocks=2), BlockPool(2))
    with pytest.raises(RequestError, match=r"needs 3 cache blocks and the engine has 2.*kv_cache\.memory"):
        scheduler.add(sequence(0, 40, 41), 0.0)


def test_the_first_that_waits_is_not_overtaken_by_one_that_would_fit():
    scheduler = first_come(limits(max_rows=64, blocks=4), BlockPool(4))
    big, next_big, small = sequence(0, 40, 48), sequence(1, 40, 48), sequence(2, 2, 4)
    for s in (big, next_big, small):
        scheduler.add(s, 0.0)
    batch = scheduler.next_batch(0.0)
    assert batch is not None
    assert [g.sequence.id for g in batch.segments] == [0]
    assert (scheduler.running, scheduler.waiting) == (1, 2)


def test_blocks_are_handed_out_once_and_come_back_once():
    pool = BlockPool(4)
    first, second = pool.allocate(3), pool.allocate(1)
    assert sorted([*first, *second]) == [0, 1, 2, 3]
    pool.release(first)
    assert pool.allocate(3).tolist() == first.tolist(), "the blocks used last are the ones in the processor's cache"
    pool.release(second)
    with pytest.raises(ValueError, match="released twice"):
        pool.release(second)
