"""The scheduler under random events: every row sees its own prefix, nothing is lost, and every request ends."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from drawn import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_parts import (
    Adapters,
    Cache,
    Chaos,
    Newest,
    Oracle,
    Reference,
    answer,
    check,
    contents,
    continuation,
    follow,
    keys_of,
    linear,
    sequence,
    told,
)

from infeng_core.batch import NOT_FINITE, Batch, Limits, RunningRequest
from infeng_core.errors import OverloadedError
from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from infeng_core.scheduling.cost import CostModel, StepShape
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import tree_of
from infeng_core.scheduling.step_budget import LEAST_CHUNK, UNKNOWN_CHUNK
from infeng_core.scheduling.tables import Needs

HOUR = 3600.0
TEXTS = [[(i * i * k + i // 16) % 3 for i in range(100)] for k in (0, 1, 5)]
"""Prompts begin like one of these, so that many begin alike."""

WINDOWS = [(1,), (7,), (20,), (33,), (0, 16), (0, 20), (0, 20, 20), (0, 0, 33)]
"""Of groups of layers."""


@dataclass(eq=False)
class Case:
    """A request, and what the test knows of it."""

    sequence: RunningRequest
    stop: int
    """Tokens after which it ends."""
    reported: set[int] = field(default_factory=set)
    overtaken: int = 0


class World:
    """A scheduler, what surrounds it, and all that is known of what it has to do."""

    def __init__(self, rng: random.Random, has_windows: bool = False) -> None:
        self.now = 1.0
        self.made = 0
        self.here: dict[RunningRequest, Case] = {}
        self.ended: Counter[str] = Counter()
        self.texts = list(TEXTS)
        self.is_in_order = True

        slots, rows, blocks = rng.randint(1, 4), rng.choice([0, 1, 3, 12, 30, 60]), rng.choice([3, 4, 5, 6, 8, 12])
        samples, prefix, costs = rng.randint(0, 6), rng.random() < 0.7, rng.choice(["unknown", "learnt", "given"])
        policy, seconds = rng.choice([FirstCome, FirstCome, Chaos, Newest]), rng.choice([None, 0.01, 0.05, 0.2])
        bounds = rng.choice([Bounds(), Bounds(), Bounds(requests=5), Bounds(tokens=90), Bounds(seconds=5.0)])
        windows, context = (0,), min(8, blocks) * 16 - 3
        if has_windows:
            windows = rng.choice(WINDOWS)
            blocks *= len(windows)
            context = min(125, (Needs(windows, slots + rows).longest(blocks) or 128) - 3)
        self.limits = Limits(slots + rows, min(slots + rows, slots + samples), slots, context, blocks, windows)
        self.needs = Needs(windows, slots + rows)
        self.pool = BlockPool(blocks)
        self.cache = Cache(self.pool, windows, context)
        self.prefixes = tree_of(self.pool, self.limits) if prefix else None
        self.seconds = seconds
        self.costs = linear(0.004, 0.001, 1e-5, 0.002) if costs == "given" else CostModel()
        if costs == "learnt":
            for size in range(1, 70):
                self.costs.observe(StepShape(size, 1, size * size), 0.01 + 0.0005 * size)
        self.backlog = Backlog(bounds, self.costs, self.limits.max_rows)
        self.bounds = bounds
        self.adapters = Adapters(rng.randint(1, 3), resident={"c0": 0})
        self.policy = told(policy, self.limits)
        self.keys = keys_of(self.limits)
        self.is_in_order = policy is FirstCome
        self.scheduler = Scheduler(
            self.limits,
            self.pool,
            self.policy,
            step_seconds=seconds,
            costs=self.costs,
            prefixes=None if self.prefixes is None else self.shared(self.prefixes),
            backlog=self.backlog,
        )

    def shared(self, tree: PrefixTree) -> PrefixCache:
        return PrefixCache(tree, self.keys.key_of, turns_of=self.keys.turns_of)

    # ------------------------------------------------------------------------------------------------ what comes ---

    def submit(self, rng: random.Random) -> None:
        prompt, own = rng.choice(self.texts)[: rng.choice([1, 2, 15, 16, 17, 31, 33, 45, 70])], rng.choice([0, 0, 1, 3])
        prompt = (prompt + [2, 1, 0][:own])[: self.limits.context - 1]
        new, early = rng.choice([1, 2, 10, 20, 40, 60]), rng.random() < 0.3
        guesses, wrong = rng.choice([0, 0, 3, 20]), rng.choice([2, 9, 1 << 30])
        report, salt = rng.choice([None, None, None, 0, 5, 17, 40]), rng.choice(["", "", "", "s"])
        timeout = rng.choice([*[None] * 9, 0.0, 0.3, HOUR])
        uses = rng.choice([*[()] * 3, *[("a",)] * 3, ("b",), ("c",), ("a", "b"), ("b", "a")])
        waiting = (self.backlog.requests, self.backlog.tokens)
        try:
            self.backlog.check(len(prompt))
        except OverloadedError as error:
            assert error.retry_after > 0.0
            assert waiting[0] > 0 or self.bounds.seconds is not None
            return
        assert self.bounds.requests is None or waiting[0] < self.bounds.requests
        assert self.bounds.tokens is None or waiting[0] == 0 or waiting[1] + len(prompt) <= self.bounds.tokens
        one = sequence(self.made, prompt, new, self.limits.context, salt)
        self.made += 1
        one.arrived = self.now
        one.deadline = math.inf if timeout is None else self.now + timeout
        if uses:
            weights = (rng.choice([1.0, 0.5]),) * len(uses)
            other = random.Random(self.made)  # apart, so that all else stays as it is
            firsts = tuple(other.choice([0, 0, 0, 3, 15, 16, 17, 30, 50]) % len(prompt) for _ in uses)
            one.adapters = Reference(self.adapters, uses, weights, firsts)
        if guesses:
            one.guesses = Oracle(one, guesses, wrong)
        if report is not None and report < len(prompt):
            one.report_from = report
        room = len(one.tokens) - len(prompt)
        self.here[one] = Case(one, max(1, room // 2) if early else room)
        self.backlog.enter(one.id, len(prompt))
        self.scheduler.add(one, self.now)

    def cancel(self, rng: random.Random) -> None:
        if self.here:
            self.end(rng.choice(list(self.here)), "cancelled")

    def wait(self, rng: random.Random) -> None:
        self.now += rng.choice([0.01, 0.2, 1.0, HOUR, 5 * HOUR])

    def load(self, rng: random.Random) -> None:
        if self.adapters.loading:
            id_ = rng.choice(self.adapters.loading)
            if rng.random() < 0.1:
                self.adapters.lost(id_, self.here)
            else:
                self.adapters.loaded(id_)

    def change(self, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self.adapters.reload(rng.choice("abcd"))
        self.adapters.vanishes = True

    # ----------------------------------------------------------------------------------------------------- steps ---

    def steps(self, rng: random.Random) -> None:
        took = rng.choice([0.0, 0.001, 0.02, 0.02, 0.02, 0.03, 0.03, 0.03, HOUR])
        for _ in range(rng.choice([1, 1, 2, 5, 30])):
            self.step(rng.random() < 0.1, rng.random() < 0.01, took)

    def step(self, fails: bool = False, broken: bool = False, took: float = 0.01) -> bool:
        self.settle()
        began = {one: one.started for one in self.here}
        batch = self.scheduler.next_batch(self.now)
        self.settle_order(began)
        if batch is None:
            return False
        self.look_at(batch)
        if fails:
            self.cache.spoil(batch)
            kept = (batch.segments, *(part.copy() for part in batch[1:6]))
            batch = self.scheduler.next_batch(self.now)
            if batch is None:
                assert not self.is_in_order, "only a policy that changes its mind makes another one"
                return False
            if self.is_in_order:
                assert batch.segments == kept[0]
                assert all((new == old).all() for new, old in zip(batch[1:6], kept[1:], strict=True))
            self.look_at(batch)
        cells = self.cache.run(batch)
        for segment in batch.segments:
            positions = range(segment.pos0, segment.pos0 + segment.row_end - segment.row_begin)
            if segment.sampled:
                self.here[segment.sequence].reported.update(positions[-segment.sampled :])
        gained = answer(batch, cells)
        finished = []
        tokens = iter(gained)
        for segment in batch.segments:
            if not segment.sampled:
                continue
            one, new = segment.sequence, next(tokens)
            del new[self.here[one].stop - (one.length - one.prompt_length) :]
            if broken and new:
                new[-1] = NOT_FINITE
            if new and (broken or one.length - one.prompt_length + len(new) == self.here[one].stop):
                finished.append(one)
        self.now += took
        self.scheduler.commit(batch, gained, finished, self.now)
        for one in finished:
            self.end(one, "finished")
        return True

    def settle(self) -> None:
        """Do what an engine does between steps."""
        while self.adapters.failed:
            reference = self.adapters.failed.popleft()
            for one in [one for one in self.here if one.adapters is reference]:
                self.end(one, "failed")
        for one in self.scheduler.expired(self.now):
            assert one.deadline <= self.now
            self.end(one, "expired")
        assert all(one.deadline > self.now for one in self.here)
        assert self.scheduler.next_deadline == min((one.deadline for one in self.here), default=math.inf)

    def end(self, one: RunningRequest, why: str) -> None:
        """Let go of a request, whose text has to be what the model says."""
        case = self.here.pop(one)
        self.scheduler.drop(one, self.now)
        self.backlog.leave(one.id, self.now)
        self.ended[why] += 1
        new = one.tokens[one.prompt_length : one.length].tolist()
        if new and new[-1] == NOT_FINITE:
            assert why == "finished"
            new.pop()
        elif why == "finished":
            assert len(new) == case.stop
        if new:
            assert new == continuation(one, one.prompt_length, len(new)), "others would have other tokens"
        if new and one.report_from is not None:
            assert case.reported >= {*range(one.report_from, one.prompt_length)}
        assert one.prompt_length == len(one.request.prompt)
        assert tuple(one.tokens[: one.prompt_length].tolist()) == one.request.prompt
        if why == "finished" and NOT_FINITE not in one.tokens[: one.length]:
            self.texts = [*self.texts[-4:], one.tokens[: one.length].tolist()]

    def settle_order(self, began: dict[RunningRequest, float]) -> None:
        """Assert who may have started before whom."""
        started = [one for one in self.here if one.started and not began[one]]
        for one in started:
            assert one.started == self.now
            assert 0 <= one.cached <= max(0, one.prompt_length - 1)
            assert one.cached % BLOCK_TOKENS == 0
        if not self.is_in_order:
            return
        for other in [one for one in self.here if one in self.scheduler._waiting]:
            passed = sum((one.arrived, one.id) > (other.arrived, other.id) for one in started)
            if passed and not other.preemptions:
                assert other.adapters is not None, "who needs nothing but blocks was overtaken"
                if other.adapters.uses in self.adapters.lacking:
                    self.here[other].overtaken += passed
                assert self.here[other].overtaken <= 3 * self.limits.max_segments + 1

    def look_at(self, batch: Batch) -> None:
        check(batch, self.limits)
        running = [*self.scheduler._running]
        assert all(one.computed < one.length <= len(one.tokens) for one in running)
        prompts = [g for g in batch.segments if g.sequence.computed < g.sequence.length - 1]
        # A prompt's last token alone, after others were found in the cache, looks like one that decodes.
        first_rows = [g for g in batch.segments if g.sequence in self.scheduler._prompts]
        assert {g.sequence for g in prompts} <= {g.sequence for g in first_rows}
        decoding = [g for g in batch.segments if g.sequence not in self.scheduler._prompts]
        rows = sum(g.row_end - g.row_begin for g in first_rows)
        if self.is_in_order and self.limits.max_samples > len(running):
            cut = False
            for one in self.scheduler._prompts:
                count = sum(g.row_end - g.row_begin for g in first_rows if g.sequence is one)
                assert not (cut and count), "a prompt got rows before one that came first"
                cut = one.report_from is None and one.computed + count < one.length
        if not decoding or not rows or self.policy.__class__.__name__ != "ToldFirstCome" or self.seconds is None:
            return
        if not self.costs.is_fitted:
            assert rows <= UNKNOWN_CHUNK
            return
        if any(g.sequence.report_from is not None for g in first_rows):
            return  # its sampled rows are not planned
        attended = sum(g.sequence.length for g in decoding)
        for g in first_rows:
            count = g.row_end - g.row_begin
            attended += count * g.pos0 + count * (count + 1) // 2
        count = len(decoding) + sum(g.sampled for g in first_rows)
        shape = StepShape(len(decoding) + rows, count, attended, len(batch.adapters))
        assert rows <= LEAST_CHUNK or self.costs.seconds(shape) <= self.seconds * 1.001

    # ------------------------------------------------------------------------------------------------ what holds ---

    def everybody_is_somewhere(self):
        scheduler = self.scheduler
        waiting, running = {*scheduler._waiting}, {*scheduler._running}
        assert waiting | running == self.here.keys()
        assert not waiting & running
        assert (scheduler.waiting, scheduler.running) == (len(waiting), len(running))
        assert (self.policy.waits, self.policy.runs) == (waiting, running)
        assert self.backlog.requests == sum(not one.started for one in self.here)
        assert self.backlog.tokens == sum(one.prompt_length for one in self.here if not one.started)
        assert len(running) <= scheduler._slots
        slots = [*scheduler._running.values(), *scheduler._free_slots]
        assert sorted(slots) == [*range(scheduler._slots)]
        assert {*scheduler._grouped} == running
        assert len(scheduler._grouped) == len(running)
        assert {*scheduler._prompts} <= running
        assert sum(self.ended.values()) + len(self.here) == self.made
        assert scheduler.preempted == sum(one.preemptions for one in (*self.here, *self.policy.gone))

    def blocks_are_conserved(self):
        held: Counter[int] = Counter()
        for one in self.here:
            own = one.tables[one.tables >= 0] if self.needs.near else one.blocks
            held.update(own.tolist())
            assert len(own) <= self.needs.most(one.length + 2 * BLOCK_TOKENS)
            if one in self.scheduler._waiting:
                assert len(one.blocks) == one.computed == 0
            else:
                assert blocks_for(one.computed) <= len(one.blocks) <= blocks_for(len(one.tokens))
        for entry in () if self.prefixes is None else self.prefixes.entries():
            held.update(entry.blocks + entry.near)
        for block in range(self.pool.total):
            assert self.pool.references(block) == held[block]
        assert self.pool.free == self.pool.total - len(held)
        if not self.scheduler.running:
            assert self.scheduler.free_blocks == self.pool.total

    def what_is_kept_is_what_its_tokens_say(self):
        """Every shared block holds the result of computing its tokens under its key."""
        if self.prefixes is None:
            return
        ends: dict[tuple[bytes, int], int | None] = {}
        starts = {
            key: (int(one.tokens[0]), contents(one, 1)[0])
            for one in self.here
            if (key := self.keys.key_of(one)) and one.computed
        }
        for entry in self.prefixes.entries():
            key, depth, tokens, *_ = entry
            said = memoryview(tokens).cast("i").tolist()
            before = ends[key, depth - 1] if depth else None
            end = before
            for token in said if before is not None else ():
                end = follow(end, token)
            for block in entry.blocks + entry.near:
                holds = self.cache.holds(block)
                if before is not None:
                    assert holds[0] == follow(before, said[0])
                elif not depth and said[0] == starts.get(key, (-1, 0))[0]:
                    assert holds[0] == starts[key][1]
                begins_to_act = depth == 0 and key not in self.prefixes._roots  # an adapter, at one of its tokens
                for last, token, cell in zip(holds, said[1:], holds[1:], strict=False):
                    assert begins_to_act or cell == follow(last, token)
                end = holds[-1]
            ends[key, depth] = end  # None: all before it have lost their blocks

    def adapters_are_held_by_those_that_run(self):
        holders: Counter[str] = Counter()
        for one in self.here:
            if isinstance(one.adapters, Reference):
                assert bool(one.adapters.rows) == (one in self.scheduler._running)
                holders.update(one.adapters.contents if one.adapters.rows else ())
        assert {id_: count for id_, count in self.adapters.resident.items() if count} == dict(holders)

    def check(self) -> None:
        self.everybody_is_somewhere()
        self.blocks_are_conserved()
        self.what_is_kept_is_what_its_tokens_say()
        self.adapters_are_held_by_those_that_run()

    def drain(self) -> None:
        """Let every request run to its end; nothing is left."""
        for _ in range(6000):
            if not self.here:
                break
            if not self.step() and self.here and not self.adapters.failed:
                assert self.scheduler.running == 0, "there is work, and no batch"
                assert self.adapters.loading, "all wait, and for nothing"
                self.adapters.loaded(self.adapters.loading[0])
        assert not self.here, "a request never ends"
        self.check()
        scheduler = self.scheduler
        assert not (scheduler._reached or scheduler._displaced or scheduler._prompts or scheduler._deadlines)
        assert not self.policy._waiting
        assert self.backlog.requests == 0


def wander(seed: int, moves: int = 60, has_windows: bool = False) -> World:
    """Let a world go through what a seed says."""
    rng = random.Random(seed)
    world = World(rng, has_windows)
    for _ in range(moves):
        move = rng.choice([world.submit] * 6 + [world.steps] * 6 + [world.load] * 3 + [world.cancel, world.wait])
        if rng.random() < 0.02:
            move = world.change
        move(rng)
        world.check()
    world.drain()
    return world


def random_loads(count: int) -> None:
    """Go through many; raises at the first that goes wrong."""
    for seed in range(count):
        wander(seed)


def random_windows(count: int) -> None:
    """Go through many in which groups of layers have windows."""
    for seed in range(count):
        wander(seed, has_windows=True)


class Machine(RuleBasedStateMachine):
    """Requests, steps, cancellations, loads of adapters and time in an order that can be made shorter."""

    world: World | None = None

    @initialize(seed=st.integers(0, 1 << 20), has_windows=st.booleans())
    def begin(self, seed, has_windows):
        self.world = World(random.Random(seed), has_windows)

    @rule(
        seed=st.integers(0, 1 << 20),
        move=st.sampled_from(["submit", "submit", "steps", "steps", "load", "cancel", "wait", "change"]),
    )
    def move(self, seed, move):
        getattr(self.world, move)(random.Random(seed))

    @invariant()
    def all_is_well(self):
        self.world.check()

    def teardown(self):
        if self.world is not None:
            self.world.drain()


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 16),
        pytest.param(16, 84, marks=pytest.mark.slow),
        *(pytest.param(many, many, marks=pytest.mark.nightly) for many in (100, 1000)),
    ],
)
def test_under_random_events_rows_see_their_own_prefix_and_all_requests_end(first, count):
    worlds = [wander(seed) for seed in range(first, first + count)]
    ends = Counter(why for world in worlds for why in world.ended)
    assert ends.keys() == {"finished", "cancelled", "expired", "failed"}
    assert sum(world.scheduler.preempted for world in worlds) > count
    assert sum(world.scheduler.prefix_hits for world in worlds) > 4 * count


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 6), pytest.param(6, 194, marks=pytest.mark.slow), pytest.param(1000, 1000, marks=pytest.mark.nightly)],
)
def test_with_windows_rows_see_their_window_and_blocks_behind_it_are_freed(first, count):
    worlds = [wander(seed, has_windows=True) for seed in range(first, first + count)]
    assert sum(world.scheduler.preempted for world in worlds) > count
    assert sum(world.scheduler.prefix_hits for world in worlds) > 4 * count
    assert count < 100 or {world.limits.windows for world in worlds} == {*WINDOWS}
