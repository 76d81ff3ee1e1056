"""What tests of the scheduler stand on: a cache that knows what was written where, a model, adapters, policies."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from infeng_core.batch import Batch, Limits, RunningRequest
from infeng_core.errors import AdapterError, InfengError
from infeng_core.requests.request import Request
from infeng_core.scheduling.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from infeng_core.scheduling.cost import CostModel
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.policy import Policy, Served
from infeng_core.scheduling.schedulers import Schedulers

VOCAB = 3
"""So few that texts often go on alike."""


# ------------------------------------------------------------------------------------------------ cache and model ---


def about(sequence: RunningRequest) -> int:
    """Return what a sequence's keys and values depend on beside its tokens: adapters, weights; its salt as well."""
    return hash((*_acting(sequence, 0), -1, len(sequence.request.cache_salt)))


def _acting(sequence: RunningRequest, position: int) -> tuple[int, ...]:
    """Return the adapters that act on a position, with their weights."""
    reference = sequence.adapters
    if not isinstance(reference, Reference):
        return ()
    found = zip(reference.contents, reference.weights, reference.firsts, strict=True)
    return tuple(hash((int(id_[1:]), weight)) for id_, weight, first in found if first <= position)


def follow(before: int, token: int) -> int:
    """Return what the cache holds of a position with ``token``, where it holds ``before`` of the one before it."""
    return hash((before, token))


def follow_at(sequence: RunningRequest, position: int, before: int, token: int) -> int:
    """Return the same of one of a sequence's positions: where an adapter begins to act, all depends on it from there
    on."""
    acting = _acting(sequence, position)
    is_other = position > 0 and acting != _acting(sequence, position - 1)
    return hash((before, token, acting)) if is_other else follow(before, token)


def drawn(cell: int) -> int:
    """Return the token that the model says after a position of which the cache holds ``cell``."""
    return cell // 7 % VOCAB


def contents(sequence: RunningRequest, count: int) -> list[int]:
    """Return what the cache has to hold of the first ``count`` positions of a sequence."""
    cell, found = about(sequence), []
    for position, token in enumerate(sequence.tokens[:count].tolist()):
        cell = follow_at(sequence, position, cell, token)
        found.append(cell)
    return found


def continuation(sequence: RunningRequest, begin: int, count: int) -> list[int]:
    """Return the tokens that the model says after the first ``begin``, as if there were no scheduler."""
    cell, found = contents(sequence, begin)[-1], []
    for _ in range(count):
        found.append(drawn(cell))
        cell = follow(cell, found[-1])
    return found


class Cache:
    """What each position of each block holds. A row depends on all that it sees in its sequence's blocks."""

    def __init__(self, pool: BlockPool, windows: tuple[int, ...] = (0,), context: int = 0) -> None:
        self._pool = pool
        self._windows, self._width = windows, blocks_for(context)
        self._cells = [[0] * BLOCK_TOKENS for _ in range(pool.total)]

    def run(self, batch: Batch) -> list[list[int]]:
        """Write the rows of a batch; return for each segment what each of its rows holds.

        Asserts that every row finds its own prefix as far as each group of layers sees it, that nobody else holds a
        block which is written, and that blocks which nobody sees are gone.
        """
        found = []
        for segment, (begin, end, pos0, first) in zip(batch.segments, batch.kv_segments.tolist(), strict=True):
            sequence = segment.sequence
            tables = self._tables(batch, first, blocks_for(pos0 + end - begin))
            blocks = [block for table in tables for block in table if block >= 0]
            assert len(set(blocks)) == len(blocks)
            expected = contents(sequence, pos0)
            for window, table in zip(self._windows, tables, strict=True):
                seen = max(0, pos0 - window + 1) if window else 0
                there = [self._cells[table[p // BLOCK_TOKENS]][p % BLOCK_TOKENS] for p in range(seen, pos0)]
                assert there == expected[seen:], f"{sequence.id} sees what is not its own prefix"
                gone = max(0, pos0 // BLOCK_TOKENS * BLOCK_TOKENS - window + 1) // BLOCK_TOKENS if window else 0
                assert {*table[:gone]} <= {-1}, f"{sequence.id} has what it does not see"
                assert min(table[seen // BLOCK_TOKENS :]) >= 0
                for block in table[pos0 // BLOCK_TOKENS :]:
                    assert self._pool.references(block) == 1, f"{sequence.id} writes a block that others hold"
            cell = expected[-1] if expected else about(sequence)
            cells = []
            for position, token in enumerate(batch.tokens[begin:end].tolist(), pos0):
                cell = follow_at(sequence, position, cell, token)
                for table in tables:
                    self._cells[table[position // BLOCK_TOKENS]][position % BLOCK_TOKENS] = cell
                cells.append(cell)
            found.append(cells)
        return found

    def _tables(self, batch: Batch, first: int, needed: int) -> list[list[int]]:
        """Return the blocks of one sequence in each group of layers."""
        places = [first + index * self._width for index in range(len(self._windows))]
        return [batch.block_tables[place : place + needed].tolist() for place in places]

    def spoil(self, batch: Batch) -> None:
        """Do what a step does that fails in the middle: write what nobody can use."""
        for begin, end, pos0, first in batch.kv_segments.tolist():
            for table in self._tables(batch, first, blocks_for(pos0 + end - begin)):
                for position in range(pos0, pos0 + end - begin):
                    self._cells[table[position // BLOCK_TOKENS]][position % BLOCK_TOKENS] = -7

    def holds(self, block: int) -> list[int]:
        """Return what a block holds."""
        return self._cells[block]


class Oracle:
    """Guesses what the model will say, but for some that are wrong."""

    def __init__(self, sequence: RunningRequest, most: int, wrong: int) -> None:
        """Guess up to ``most`` tokens, of which one in ``wrong`` is not right."""
        self.draft: list[int] = []
        self._sequence, self._most = sequence, most
        self._random, self._wrong = random.Random(sequence.id), wrong

    def follow(self, new: Several[int], drafted: int) -> None:
        """Guess again."""
        right = continuation(self._sequence, self._sequence.length, self._random.randint(0, self._most))
        self.draft = [(token + (self._random.randrange(self._wrong) == 0)) % VOCAB for token in right]


def answer(batch: Batch, cells: list[list[int]]) -> list[list[int]]:
    """Return for each segment with sampled rows the tokens that it gains: guesses count as long as they are right."""
    gained = []
    for segment, of_rows in zip(batch.segments, cells, strict=True):
        if not segment.sampled:
            continue
        rows = of_rows[len(of_rows) - segment.sampled + segment.known :]
        guessed = batch.tokens[segment.row_end - len(rows) + 1 : segment.row_end].tolist()
        new: list[int] = []
        for index, cell in enumerate(rows):
            new.append(drawn(cell))
            if index == len(guessed) or guessed[index] != new[-1]:
                break
        gained.append(new)
    return gained


def check(batch: Batch, bounds: Limits) -> None:
    """Assert what every backend relies on."""
    rows, segments = len(batch.tokens), batch.segments
    assert 1 <= rows <= bounds.max_rows
    assert len(batch.positions) == rows
    assert len(segments) == len(batch.kv_segments) <= bounds.max_segments
    assert len(batch.sample_rows) <= bounds.max_samples
    assert len({id(segment.sequence) for segment in segments}) == len(segments)
    assert segments[0].row_begin == 0
    assert segments[-1].row_end == rows
    samples: list[int] = []
    for i, segment in enumerate(segments):
        s, end = segment.sequence, segment.row_end
        assert i == 0 or segment.row_begin == segments[i - 1].row_end
        assert batch.kv_segments[i, :3].tolist() == [segment.row_begin, end, segment.pos0]
        assert segment.pos0 == s.computed
        count = end - segment.row_begin
        assert count > 0
        positions = batch.positions[segment.row_begin : end].tolist()
        assert positions == [*range(segment.pos0, segment.pos0 + count)]
        known = s.tokens[segment.pos0 : min(segment.pos0 + count, s.length)].tolist()
        guessed = count - len(known)
        assert batch.tokens[segment.row_begin : end].tolist() == known + s.draft[:guessed]
        assert guessed == 0 or positions[-1] < len(s.tokens) - 1, "a guess beyond the last token"
        first, needed = batch.kv_segments[i, 3], blocks_for(segment.pos0 + count)
        assert batch.block_tables[first : first + needed].tolist() == s.blocks[:needed].tolist()
        wanted = [p for p in positions if p >= s.length - 1 or (s.report_from is not None and p >= s.report_from)]
        assert segment.sampled == len(wanted)
        assert segment.known == sum(p < s.length - 1 for p in wanted)
        samples += range(end - segment.sampled, end)
        for row, position in zip(range(segment.row_begin, end), positions, strict=True):
            used = [(rows.handle, rows.weight) for rows in batch.adapters if rows.row_begin <= row < rows.row_end]
            assert used == ([] if s.adapters is None else acting_rows(s.adapters, position))
    assert batch.sample_rows.tolist() == samples


# ---------------------------------------------------------------------------------------------------- adapters ---


@dataclass
class Adapters:
    """A registry of up to ``most`` adapters in memory whose loads end when a test says so."""

    most: int
    changes: int = 0
    names: dict[str, str] = field(default_factory=lambda: {name: f"c{i}" for i, name in enumerate("abcd")})
    """To their contents; another version of an adapter has others."""
    resident: dict[str, int] = field(default_factory=dict)
    """Contents in memory, the longest unused first, and how many requests hold each."""
    loading: list[str] = field(default_factory=list)
    failed: deque[Reference] = field(default_factory=deque)
    lacking: set[object] = field(default_factory=set)
    """What uses lacked room when it was asked for last."""
    vanishes: bool = False
    """Whether the next adapter that is acquired has just left."""
    _made: int = 4

    def prefetch(self, references: Several[Reference]) -> int:
        """Begin to load what fits beside what requests hold; return how many of the first lack no room."""
        held = {id_ for id_, holders in self.resident.items() if holders} | {*self.loading}
        kept: set[str] = set()
        wanted: list[str] = []
        served = len(references)
        for place, one in enumerate(references):
            if one.error is not None:
                continue
            needed = {*one.now()}
            if one.contents and any(
                id_ not in self.resident and self.names[name] != id_
                for name, id_ in zip(one.names, one.contents, strict=True)
            ):
                self.fail(one, "its old contents are gone")
            elif len(held | kept | needed) <= self.most:
                kept |= needed
                wanted += [id_ for id_ in one.now() if id_ not in self.resident and id_ not in (*self.loading, *wanted)]
            elif len(needed) > self.most:
                self.fail(one, "there can never be so many")
            else:
                if len(kept | needed) <= self.most:
                    served = place
                break
        for id_ in wanted:
            for idle in [one for one, holders in self.resident.items() if not holders and one not in kept]:
                if len(self.resident) + len(self.loading) >= self.most:
                    del self.resident[idle]
            if len(self.resident) + len(self.loading) < self.most:
                self.loading.append(id_)
        self.lacking = {one.uses for one in references[served:]}
        return served

    def fail(self, reference: Reference, why: str) -> None:
        reference.error = AdapterError("adapter", why)
        self.failed.append(reference)

    def loaded(self, id_: str) -> None:
        """Let a load end."""
        self.loading.remove(id_)
        self.resident[id_] = 0
        self.changes += 1

    def lost(self, id_: str, waiting: Iterable[RunningRequest]) -> None:
        """Let a load fail, and with it those that wait for it."""
        self.loading.remove(id_)
        self.changes += 1
        for sequence in waiting:
            one = sequence.adapters
            if isinstance(one, Reference) and one.error is None and id_ in one.now():
                self.fail(one, "it cannot be read")

    def reload(self, name: str) -> None:
        """Give an adapter other contents; those that have begun with the old ones keep them."""
        self.names[name] = f"c{self._made}"
        self._made += 1
        self.changes += 1


def acting_rows(reference: Any, position: int) -> list[tuple[Any, float]]:
    """Return (handle, weight) of a request's adapters that act on a position."""
    begins = reference.begins or (0,) * len(reference.rows)
    return [use for use, begin in zip(reference.rows, begins, strict=True) if begin <= position]


class Reference:
    """The adapters of one request. firsts: the position from which on each of them acts; None: all act on all."""

    def __init__(
        self,
        registry: Adapters,
        names: tuple[str, ...],
        weights: tuple[float, ...],
        firsts: tuple[int, ...] | None = None,
    ) -> None:
        self.registry, self.names, self.weights = registry, names, weights
        self.firsts = firsts or (0,) * len(names)
        self.begins: tuple[int, ...] = ()
        self.contents: tuple[str, ...] = ()
        self.rows: tuple[tuple[Any, float], ...] = ()
        self.error: InfengError | None = None

    @property
    def uses(self) -> tuple[object, ...]:
        return self.names, self.weights, self.contents

    def now(self) -> tuple[str, ...]:
        """Return the contents that it has or would get."""
        return self.contents or tuple(self.registry.names[name] for name in self.names)

    def known(self) -> tuple[tuple[str, float, int], ...] | None:
        if not (self.contents or self.is_ready()):
            return None
        return tuple(zip(self.now(), self.weights, self.firsts, strict=True))

    def is_ready(self) -> bool:
        return self.error is None and all(id_ in self.registry.resident for id_ in self.now())

    def acquire(self) -> bool:
        registry = self.registry
        if self.rows:
            return True
        if registry.vanishes and self.is_ready() and not registry.resident[self.now()[0]]:
            registry.vanishes = False
            del registry.resident[self.now()[0]]
            registry.changes += 1
        if not self.is_ready():
            return False
        self.contents = self.now()
        for id_ in self.contents:
            registry.resident[id_] = registry.resident.pop(id_) + 1
        self.rows = tuple(zip(self.contents, self.weights, strict=True))
        self.begins = self.firsts if any(self.firsts) else ()
        return True

    def release(self) -> None:
        for id_ in self.contents if self.rows else ():
            self.registry.resident[id_] -= 1
        if self.rows:
            self.registry.changes += 1
        self.rows, self.begins = (), ()

    def close(self) -> None:
        self.release()


# ---------------------------------------------------------------------------------------------------- policies ---


class Told(Policy):
    """Asserts that a policy hears what is true: everybody comes, goes and ends once."""

    waits: set[RunningRequest]
    runs: set[RunningRequest]
    gone: set[RunningRequest]

    def add(self, request: RunningRequest, now: float) -> None:
        assert request not in self.waits
        assert request not in self.gone
        self.runs.discard(request)
        self.waits.add(request)
        super().add(request, now)

    def remove(self, request: RunningRequest, now: float) -> None:
        self.waits.remove(request)
        self.runs.add(request)  # or it has ended, as it is told then
        super().remove(request, now)

    def ended(self, request: RunningRequest, now: float) -> None:
        assert request not in self.waits
        self.runs.remove(request)
        self.gone.add(request)
        super().ended(request, now)


class Chaos(FirstCome):
    """Decides all that a policy may decide by chance."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.random = random.Random(1)

    def order(self, now: float) -> list[RunningRequest]:
        return self._shuffled(super().order(now))

    def active(self, running: Several[RunningRequest], now: float) -> list[RunningRequest]:
        return self._shuffled(running)[: self.random.randint(1, max(1, len(running)))]

    def prompts(self, running: Several[RunningRequest], now: float) -> list[RunningRequest]:
        return self._shuffled(running)

    def victim(self, running: Several[RunningRequest], now: float) -> RunningRequest:
        return self.random.choice(running)

    def displaced(self, request: RunningRequest, running: Several[RunningRequest], now: float) -> RunningRequest | None:
        return self.random.choice([None, *running])

    def seconds(self, decoding: Several[RunningRequest], now: float) -> float | None:
        return self.random.choice([None, 0.001, 0.1])

    def served(self, work: Several[Served], now: float) -> None:
        for request, rows, new in work:
            assert request in getattr(self, "runs", {request})
            assert 0 <= rows <= request.prompt_length
            assert 0 <= new <= request.length - request.prompt_length

    def _shuffled(self, requests: Several[RunningRequest]) -> list[RunningRequest]:
        return self.random.sample(list(requests), len(requests))


class Newest(FirstCome):
    """Prefers who came last, whoever runs."""

    def order(self, now: float) -> Iterable[RunningRequest]:
        yield from reversed(self._waiting)

    def displaced(self, request: RunningRequest, running: Several[RunningRequest], now: float) -> RunningRequest | None:
        older = [one for one in running if one.arrived < request.arrived]
        return older[0] if older else None


def told(policy: type[Policy], limits: Limits) -> Any:
    """Return a policy of a class, which asserts that it is told the truth."""
    made = type("Told" + policy.__name__, (Told, policy), {})(limits)
    made.waits, made.runs, made.gone = set(), set(), set()
    return made


# ----------------------------------------------------------------------------------------------------- sequences ---


def keys_of(limits: Limits) -> Schedulers:
    """Return what says under which keys an engine shares prefixes: ``key_of`` and ``turns_of``."""
    config = SimpleNamespace(
        scheduler=SimpleNamespace(max_waiting=0, max_waiting_tokens=0, max_wait_ms=0, step_ms=0),
        kv_cache=SimpleNamespace(dtype="f32", prefix=True),
        kernels=SimpleNamespace(numerics="exact"),
    )
    return Schedulers(config, limits, FirstCome, "model")  # type: ignore[arg-type]


def key_of(limits: Limits) -> Any:
    """Return what an engine shares prefixes under."""
    return keys_of(limits).key_of


def sequence(id_: int, prompt: list[int], new: int, context: int = 1 << 30, salt: str = "") -> RunningRequest:
    """Return a request for up to ``new`` tokens."""
    request = Request(tuple(prompt), cache_salt=salt)
    made = RunningRequest.start(id_, request, prompt, min(len(prompt) + new, context), seed=0)
    made.arrived = float(id_)
    return made


def linear(fixed: float, row: float, attended: float = 0.0, adapters: float = 0.0) -> CostModel:
    """Return a cost model in which every row costs the same."""
    names = CostModel.names
    rows = {name: row for name in names if name.startswith("rows_from")}
    return CostModel({**dict.fromkeys(names, 0.0), **rows, "fixed": fixed, "attended": attended, "adapters": adapters})


def sampled(batch: Batch) -> list[RunningRequest]:
    """Return the sequences of which a token is drawn."""
    return [segment.sequence for segment in batch.segments if segment.sampled > segment.known]
