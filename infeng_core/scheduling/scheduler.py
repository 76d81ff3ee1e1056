"""The scheduler: which rows run next, in which cache blocks. It follows a policy (policy.py).

All code here is pure: time is an argument, and there is no I/O and no waiting. The same objects serve, are tested
under random loads, and run in a simulator.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from infeng_core.batch import BLOCK_TOKENS, Batch, Limits, RunningRequest, uses_of
from infeng_core.errors import PluginError, RequestError
from infeng_core.scheduling.batches import BatchBuilder, Work, prompt_work
from infeng_core.scheduling.blocks import BlockPool, blocks_for
from infeng_core.scheduling.cost import CostModel, StepShape
from infeng_core.scheduling.deadlines import Deadlines
from infeng_core.scheduling.policy import Policy, Served
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.step_budget import StepBudget
from infeng_core.scheduling.tables import Tables, held
from infeng_core.scheduling.waiting import Waiting

if TYPE_CHECKING:
    from infeng_core.scheduling.admission import Backlog

MOST_DISPLACED = 3
"""How often one sequence makes room for others that a policy prefers; then it runs to its end."""


class Scheduler:
    """Starts sequences in the order of a policy, gives them rows and blocks, and takes blocks back where they run out.

    A step holds one row of every sequence that decodes, then chunks of prompts as far as rows and time allow; rows that
    are left over go to guessed tokens. Sequences with the same adapters have neighbouring rows. Blocks are taken as a
    sequence grows. Where none is left, unused prefixes are evicted, the longest unused first, then a running sequence
    is preempted: it waits again, with its tokens, and is computed again. That costs time and changes no token. Each
    preemption lets some request gain a token, so scheduling always terminates. Blocks that layers with a window no
    longer see go back to the pool with each step (tables.py).

    Nothing changes between ``next_batch`` and ``commit``: a batch that failed is made again.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        policy: Policy,
        *,
        step_seconds: float | None = None,
        costs: CostModel | None = None,
        prefixes: PrefixCache | None = None,
        backlog: Backlog | None = None,
        name: str = "scheduler",
    ) -> None:
        """Schedule within ``limits``; blocks come from ``pool``.

        step_seconds: the limit of steps while sequences decode; None: no limit. costs: learns the time of steps.
        prefixes: gives sequences cached blocks of their tokens; None: none. backlog: notified of starts and ends.
        name: of the policy in errors.
        """
        self.policy = policy
        self._name = name
        self.costs = CostModel() if costs is None else costs
        self.pool = pool
        self.prefixes = PrefixCache.none(pool) if prefixes is None else prefixes
        self.preempted = 0
        """Number of preemptions."""
        self.prefix_queries = 0
        """Tokens of the prompts that have started, if prefixes are kept."""
        self.prefix_hits = 0
        """The part of them that was found in the cache, in memory or stored."""
        self.step_seconds = step_seconds
        self.shape = StepShape(0, 0, 0)
        """Shape of the latest batch."""
        self.is_timed = True
        """Whether the time of the latest batch says how long its step took."""
        self._limits = limits
        self._backlog = backlog
        self._slots = min(limits.max_segments, limits.max_samples, limits.max_rows)
        self._waiting = Waiting(policy, patience=2 * self._slots, name=name)
        self._running: dict[RunningRequest, int] = {}  # each with its slot, in starting order
        self._grouped: list[RunningRequest] = []  # the same, grouped by adapters
        self._prompts: dict[RunningRequest, None] = {}  # the ones with uncomputed known tokens
        self._free_slots = list(range(self._slots - 1, -1, -1))
        self._tables = Tables(limits, pool)
        self._builder = BatchBuilder(limits, self._tables.lines)
        self._deadlines = Deadlines()
        self._reached: dict[RunningRequest, int] = {}  # positions computed before a preemption
        self._displaced: dict[RunningRequest, int] = {}
        self._inactive: set[RunningRequest] = set()  # in the step that is being made
        self._refused: tuple[RunningRequest, int, int] | None = None  # who found no room, the room, the tree's count
        self._began = 0.0
        self._is_told, self._is_asked, self._displaces = (
            getattr(getattr(policy, name), "__func__", None) is not getattr(Policy, name)
            for name in ("served", "active", "displaced")
        )
        if prefixes is not None:
            policy.attach(prefixes.cached)

    # --------------------------------------------------------------------------------------------- what there is ---

    @property
    def waiting(self) -> int:
        """Sequences that have no blocks: new ones and preempted ones."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that have cache blocks."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """Blocks that are free, or of unused prefixes."""
        return self.pool.free + self.prefixes.tree.evictable

    @property
    def next_deadline(self) -> float:
        """The earliest deadline; infinity without any."""
        return self._deadlines.first

    def __contains__(self, sequence: object) -> bool:
        """Return whether a sequence waits or runs."""
        return sequence in self._running or sequence in self._waiting

    def add(self, sequence: RunningRequest, now: float) -> None:
        """Queue a sequence; raises RequestError if the whole cache could not hold it."""
        needed = self._tables.needs.most(len(sequence.tokens))
        if needed > self.pool.total:
            raise RequestError(
                f"request of {len(sequence.tokens)} tokens",
                f"it needs {needed} cache blocks and the engine has {self.pool.total}",
                "lower max_tokens or raise kv_cache.memory",
            )
        self._waiting.add(sequence, now)
        self._deadlines.add(sequence)

    def drop(self, sequence: RunningRequest, now: float) -> None:
        """Remove a sequence and free its blocks; an unknown one is ignored."""
        if sequence in self._running:
            self._stop(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence, now)
        else:
            return
        self._reached.pop(sequence, None)
        self._displaced.pop(sequence, None)
        self._deadlines.forget(sequence, self, self.running + self.waiting)
        if sequence.adapters is not None:
            sequence.adapters.close()
        self.policy.ended(sequence, now)

    def preempt(self, sequence: RunningRequest, now: float) -> None:
        """Take a running sequence's blocks and adapters; it waits again, and keeps its tokens."""
        if sequence not in self._running:
            raise self._fault("it preempts a request that does not run")
        self._reached[sequence] = max(self._reached.get(sequence, 0), sequence.computed)
        self._stop(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preempted += 1
        if sequence.adapters is not None:
            sequence.adapters.release()
        self._waiting.add(sequence, now)

    def expired(self, now: float) -> list[RunningRequest]:
        """Return the sequences whose deadline has passed, once each; the caller drops them."""
        return [sequence for sequence in self._deadlines.passed(now) if sequence in self]

    # ------------------------------------------------------------------------------------------------- the steps ---

    def next_batch(self, now: float) -> Batch | None:
        """Return the rows to compute now, or None when there is nothing to do."""
        is_second = False
        while True:
            preempted = self.preempted
            batch = self._next_batch(now)
            if batch is not None or (self.preempted == preempted and (is_second or not self._inactive)):
                return batch  # None: active requests made room in vain, or others wait
            is_second |= self.preempted == preempted

    def _next_batch(self, now: float) -> Batch | None:
        self._began = now
        decoding = self._decoding(now)
        rows = len(decoding)
        attended = sum([sequence.length for sequence in decoding])
        self.shape = StepShape(rows, rows, attended, self._builder.adapters(decoding))
        preempted = self.preempted
        chunks, reported = self._chunks(decoding, now)
        if self.preempted > preempted:  # for requests that a policy prefers; preempted ones may have started again
            decoding = [one for one in decoding if one in self._running and one not in self._prompts]
        work = prompt_work(self._grouped, chunks) if chunks else []
        if [one for one in decoding if one.forced or one.guesses is not None]:
            decoding, work = [], self._guessed_work(decoding, reported) + work
        if self._waiting:
            self._waiting.prefetch(now)
        if not decoding and not work:
            return None
        batch = self._builder.build(decoding, work, self._running)
        self.shape = self.shape._replace(rows=len(batch.tokens), sampled=len(batch.sample_rows))
        return batch

    def commit(self, batch: Batch, tokens: list[list[int]], finished: Collection[RunningRequest], now: float) -> None:
        """Record that ``batch`` ran and release the sequences that are finished.

        tokens: of each segment with a sampled row, at most ``sampled - known``; NOT_FINITE stands for a token that
        could not be drawn, and ends a finished sequence. If a segment with rows to draw from got no token, its logit
        processors were late: its last known position is computed again.
        """
        if self.is_timed:
            self.costs.observe(self.shape, now - self._began)
        new = iter(tokens)
        prompts, is_told, has_windows = self._prompts, self._is_told, self._tables.needs.near > 0
        served: list[Served] = []
        for sequence, begin, end, pos0, sampled, known in batch.segments:
            drawn = next(new) if sampled else []
            if drawn:
                sequence.extend(drawn, sampled - known - 1)
            else:
                sequence.computed = min(pos0 + end - begin, sequence.length - (sampled > known))
            fresh = 0
            if prompts and sequence in prompts:
                fresh = self._fresh_prompt_rows(sequence, pos0, end - begin)
                if drawn:
                    del prompts[sequence]
                    self.prefixes.keep(sequence)
            if has_windows and self._tables.is_beyond(sequence):
                if sequence in prompts:
                    self.prefixes.keep(sequence)  # for sequences that diverge here
                self._tables.leave(sequence)
            if is_told:
                served.append(Served(sequence, fresh, len(drawn)))
        if served:
            self.policy.served(served, now)
        for sequence in finished:
            self.drop(sequence, now)

    def _fresh_prompt_rows(self, sequence: RunningRequest, begin: int, rows: int) -> int:
        end = min(begin + rows, sequence.prompt_length)
        return max(0, end - max(begin, self._reached.get(sequence, 0)))

    # ----------------------------------------------------------------------------------------------------- decoding ---

    def _decoding(self, now: float) -> list[RunningRequest]:
        """Return the sequences with all known tokens but the last computed, each with a block for that one."""
        for sequence in [one for one in self._running if one.length > BLOCK_TOKENS * one.blocks.size]:
            self._grow(sequence, sequence.blocks.size + 1, now)
        if self._tables.needs.near:
            for sequence in [one for one in self._running if self._tables.lacking(one, one.blocks.size)]:
                self._grow(sequence, sequence.blocks.size, now)
        if not self._is_asked:
            prompts = self._prompts
            return [one for one in self._grouped if one not in prompts] if prompts else self._grouped.copy()
        active = self._active(now)
        self._inactive = {one for one in self._running if one not in active}
        return [one for one in self._grouped if one not in self._prompts and one in active]

    def _active(self, now: float) -> set[RunningRequest]:
        active = list(self.policy.active(list(self._running), now))
        if not all(isinstance(one, RunningRequest) and one in self._running for one in active):
            raise self._fault("active() names others than it was given")
        return set(active)

    def _grow(self, sequence: RunningRequest, size: int, now: float) -> None:
        """Give a sequence its usable part of ``size`` blocks; others are preempted for it, or it is."""
        while sequence in self._running:  # it may have been preempted meanwhile
            lacking = self._tables.lacking(sequence, size)
            if self._make_free(lacking):
                if lacking:
                    self._tables.extend(sequence, self._running[sequence], size)
                return
            self.preempt(self.policy.victim(list(self._running), now), now)

    def _room_beyond(self, sequence: RunningRequest) -> int:
        """Return how many guessed tokens fit in the cache after the known ones, without preemption."""
        size, running = len(sequence.blocks), len(self._running)
        room = BLOCK_TOKENS * size - sequence.length
        if room < len(sequence.draft) and self.pool.free > running * self._tables.needs.groups:
            self._tables.extend(sequence, self._running[sequence], size + 1)
            room += BLOCK_TOKENS
        return room

    def _guessed_work(self, decoding: list[RunningRequest], reported: int) -> list[Work]:
        """Return a row of each decoding sequence, and its guesses if no other sequence needs the rows.

        reported: sampled rows of prompts besides one of each sequence.
        """
        limits, running = self._limits, self._running
        needed = sum(sequence.length - sequence.computed for sequence in running)
        spare = min(limits.max_rows - needed, limits.max_samples - len(running) - reported)
        work: list[Work] = []
        for sequence in decoding:
            guessed = len(sequence.draft) if spare > 0 else 0
            if guessed:
                guessed = min(guessed, spare, self._room_beyond(sequence))
                spare -= guessed
            work.append(Work(sequence, 1 + guessed, 1 + guessed))
        return work

    # ------------------------------------------------------------------------------------------------- prompts ---

    def _chunks(self, decoding: list[RunningRequest], now: float) -> tuple[dict[RunningRequest, int], int]:
        """Return how many rows of each prompt join the decoding ones; waiting sequences start for the remaining rows.

        It also returns how many of the rows are sampled besides one of each sequence.
        """
        prompts = [one for one in self._prompts if one not in self._inactive]
        if not prompts and not self._may_start:
            return {}, 0
        chunks: dict[RunningRequest, int] = {}
        budget = self._budget_beside(decoding, now)
        for sequence in self.policy.prompts(prompts, now) if prompts else ():
            if sequence not in self._prompts or sequence in chunks:
                raise self._fault("prompts() names others than it was given, or one twice")
            chunks[sequence] = budget.take(sequence, self.running)
            if chunks[sequence] <= 0:
                break
        else:
            while budget.may_run(min(self.running + 1, self._slots)) and (started := self._start_next(now)) is not None:
                chunks[started] = budget.take(started, self.running)
        self.shape = budget.shape
        return chunks, budget.reported

    def _budget_beside(self, decoding: list[RunningRequest], now: float) -> StepBudget:
        """Return the room of a step for prompts."""
        limits, seconds = self._limits, self.policy.seconds(decoding, now)
        if seconds is not None and not seconds >= 0:
            raise self._fault(f"seconds() returned {seconds}")
        if seconds is None and decoding:
            seconds = self.step_seconds
        return StepBudget(self.shape, limits.max_rows - len(decoding), limits.max_samples, self.costs, seconds)

    # ---------------------------------------------------------------------------------------- starting, preempting ---

    @property
    def _may_start(self) -> bool:
        """Whether a sequence waits and a slot may be free."""
        return len(self._waiting) > 0 and (len(self._free_slots) > 0 or self._displaces)

    def _start_next(self, now: float) -> RunningRequest | None:
        """Start the next waiting sequence, if a slot, its adapters and blocks for its tokens are available."""
        if not self._may_start or not (self._free_slots or self._displace_for_first(now)):
            return None
        sequence = self._waiting.take(lambda one: self._fits(one, now), now)
        if sequence is None:
            self.prefixes.let_go()
            return None
        shared = self.prefixes.take(sequence)
        found = shared.shape[-1]
        if not self._make_free(self._tables.needs.to_start(sequence.length, found)):
            self.pool.release(held(shared))  # its adapters have changed since the search
            if sequence.adapters is not None:
                sequence.adapters.release()
            return None
        is_new = not (sequence.started or sequence.preemptions)
        if is_new:
            sequence.started = now
        self._waiting.remove(sequence, now)
        slot = self._running[sequence] = self._free_slots.pop()
        self._tables.start(sequence, slot, shared)
        self._tables.extend(sequence, slot, blocks_for(sequence.length))
        sequence.computed = BLOCK_TOKENS * (found + self.prefixes.restore(sequence, found))
        if is_new:
            sequence.cached = sequence.computed
            if self.prefixes.shares:
                self.prefix_queries += sequence.prompt_length
                self.prefix_hits += sequence.cached
            if self._backlog is not None:
                self._backlog.leave(sequence.id, now, started=True)
        self._prompts[sequence] = None
        self._group(sequence)
        return sequence

    def _fits(self, sequence: RunningRequest, now: float) -> bool:
        """Return whether there are blocks for a waiting sequence, and one more for each running one.

        If the policy names a sequence to make room for it, that one is preempted.
        """
        while not self._has_blocks(sequence):
            if not self._displace(sequence, now):
                return False
        return True

    def _has_blocks(self, sequence: RunningRequest) -> bool:
        self.prefixes.let_go()  # of a sequence with too few blocks, or whose adapters left before its start
        needs = self._tables.needs
        kept = needs.groups * len(self._running)
        spare = self.free_blocks - kept
        if needs.to_start(sequence.length, 0) <= spare:
            return True
        attempt = (sequence, spare, self.prefixes.tree.insertions)
        if self._refused == attempt:
            return False
        shared = self.prefixes.find(sequence).shape[-1]  # blocks that others use as well need no room
        if needs.to_start(sequence.length, shared) <= self.free_blocks - kept:
            return True
        self._refused = attempt
        return False

    def _displace_for_first(self, now: float) -> bool:
        """Free a slot for the first waiting sequence, if the policy says so."""
        first = next(iter(self.policy.order(now)), None)
        is_ready = first is not None and (first.adapters is None or first.adapters.is_ready())
        return first is not None and is_ready and self._displace(first, now)

    def _displace(self, sequence: RunningRequest, now: float) -> bool:
        running = [one for one in self._running if self._displaced.get(one, 0) < MOST_DISPLACED]
        other = self.policy.displaced(sequence, running, now) if running else None
        if other is None:
            return False
        self._displaced[other] = self._displaced.get(other, 0) + 1
        self.preempt(other, now)
        return True

    def _stop(self, sequence: RunningRequest) -> None:
        """Take a running sequence's slot and blocks; its computed blocks stay cached as long as there is room."""
        self.prefixes.keep(sequence)
        self._grouped.remove(sequence)
        self._prompts.pop(sequence, None)
        self._free_slots.append(self._running.pop(sequence))
        self._tables.release(sequence)
        self._builder.forget()

    def _group(self, sequence: RunningRequest) -> None:
        """Place a sequence behind the last one with the same adapters."""
        grouped, uses = self._grouped, uses_of(sequence)
        for index in range(len(grouped), 0, -1):
            if uses_of(grouped[index - 1]) == uses:
                grouped.insert(index, sequence)
                return
        grouped.append(sequence)

    def _make_free(self, count: int) -> bool:
        """Evict prefixes until ``count`` blocks are free; return whether they are."""
        lacking = count - self.pool.free
        if lacking > 0:
            self.prefixes.tree.evict(lacking)
        return count <= self.pool.free

    def _fault(self, why: str) -> PluginError:
        return PluginError(self._name, why, "use fcfs")
