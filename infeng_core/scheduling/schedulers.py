"""Makes the schedulers of an engine from its settings: one at a time, and a new one after every interrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.batch import BLOCK_TOKENS, Limits, RunningRequest
from infeng_core.record import Record
from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel
from infeng_core.scheduling.policy import PolicyFactory
from infeng_core.scheduling.prefix import PrefixTree, Turns
from infeng_core.scheduling.prefix_cache import PrefixCache, Restore, prefix_key, turn_mark
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.tables import Needs

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


class Load(Record):
    """The present work of an engine, and the counts of all of its schedulers since it was made."""

    running: int
    """Requests with cache blocks."""
    waiting: int
    """Requests without cache blocks, preempted ones included."""
    used_blocks: int
    """Blocks in use, without those of unused prefixes."""
    blocks: int
    """Blocks of the whole cache."""
    tokens: int
    """Positions that fit into it, without savings by windows."""
    wait_seconds: float
    """Predicted seconds until the first token of one more request, without its own prompt."""
    preemptions: int
    prefix_queries: int
    """Tokens of prompts that were looked up in the cache."""
    prefix_hits: int
    """The part of them that was found."""


class Schedulers:
    """Makes schedulers that share cost model, backlog and counts."""

    def __init__(
        self,
        config: EngineConfig,
        limits: Limits,
        policy: PolicyFactory,
        model_id: str,
        restore: Restore | None = None,
    ) -> None:
        """Start without a scheduler.

        policy: from the hook ``infeng_policies``. model_id: of the base's contents. restore: of PrefixCache.
        """
        self._restore = restore
        self._config = config
        self._limits = limits
        self._policy = policy
        self._model_id = model_id
        self._keys: dict[tuple[object, ...], bytes] = {}
        section = config.scheduler
        bounds = Bounds(
            section.max_waiting or None, section.max_waiting_tokens or None, section.max_wait_ms / 1000 or None
        )
        self.costs = CostModel()
        self.backlog = Backlog(bounds, self.costs, limits.max_rows)
        self._latest: tuple[Scheduler, tuple[int, int, int]] | None = None  # with the counts of earlier ones

    def make(self) -> Scheduler:
        """Return a scheduler without sequences."""
        pool, has_prefixes = BlockPool(self._limits.kv_blocks), self._config.kv_cache.prefix
        policy = self._policy(self._limits)
        self.backlog.shares = getattr(policy, "shares", False)
        scheduler = Scheduler(
            self._limits,
            pool,
            policy,
            step_seconds=self._config.scheduler.step_ms / 1000 or None,
            costs=self.costs,
            prefixes=self._prefixes(pool) if has_prefixes else None,
            backlog=self.backlog,
            name=f"scheduler {self._config.scheduler.use}",
        )
        self._latest = scheduler, (0, 0, 0) if self._latest is None else _counted(*self._latest)
        return scheduler

    def _prefixes(self, pool: BlockPool) -> PrefixCache:
        return PrefixCache(tree_of(pool, self._limits), self.key_of, self._restore, self.turns_of)

    def load(self) -> Load:
        """Return the load of the latest scheduler; any thread may ask, also during a step."""
        latest = self._latest or (self.make(), (0, 0, 0))
        scheduler, total = latest[0], latest[0].pool.total
        preempted, queries, hits = _counted(*latest)
        return Load(
            running=scheduler.running,
            waiting=max(scheduler.waiting, self.backlog.requests),  # before a step some are in the latter only
            used_blocks=min(max(0, total - scheduler.free_blocks), total),
            blocks=total,
            tokens=self._limits.tokens,
            wait_seconds=self.backlog.seconds(),
            preemptions=preempted,
            prefix_queries=queries,
            prefix_hits=hits,
        )

    def key_of(self, sequence: RunningRequest) -> bytes | None:
        """Return the key under which a sequence's prefix is shared; None while its adapters' contents are unknown."""
        adapters: tuple[tuple[str, float], ...] = ()
        if sequence.adapters is not None:
            known = sequence.adapters.known()
            if known is None:
                return None
            adapters = tuple((id_, weight) for id_, weight, begin in known if begin == 0)
        about = (adapters, sequence.request.cache_salt)
        if about not in self._keys:
            if len(self._keys) >= 4096:
                self._keys.clear()
            dtype, numerics = self._config.kv_cache.dtype, self._config.kernels.numerics
            self._keys[about] = prefix_key(self._model_id, dtype, numerics, *about)
        return self._keys[about]

    def turns_of(self, sequence: RunningRequest) -> Turns:
        """Return where adapters begin to act inside of a sequence's prompt; () while their contents are unknown."""
        known = () if sequence.adapters is None else sequence.adapters.known() or ()
        blocks = sorted({begin // BLOCK_TOKENS for _, _, begin in known if begin > 0})
        return tuple(
            (block, turn_mark([one for one in known if one[2] < BLOCK_TOKENS * (block + 1)])) for block in blocks
        )


def tree_of(pool: BlockPool, limits: Limits) -> PrefixTree:
    """Return the prefix tree for blocks of ``pool`` under ``limits``."""
    return PrefixTree(pool, Needs(limits.windows, limits.max_rows))


def _counted(scheduler: Scheduler, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return preemptions, and the tokens looked up and found in the cache, of a scheduler and earlier ones."""
    preempted, queries, hits = before
    return preempted + scheduler.preempted, queries + scheduler.prefix_queries, hits + scheduler.prefix_hits
