"""From an engine's settings to its schedulers: one at a time, and another after every interrupt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from infeng_core.batch import Limits, RunningRequest
from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel
from infeng_core.scheduling.policy import PolicyFactory
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache, Restore, prefix_key
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.tables import Needs

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Load:
    """The work that an engine has now, and the counts of all of its schedulers since it was made."""

    running: int
    """Requests that have blocks of the cache."""
    waiting: int
    """Requests that have none, preempted ones included."""
    used_blocks: int
    """Blocks in use; the blocks of unused prefixes are not."""
    blocks: int
    """Of the whole cache."""
    tokens: int
    """Positions that fit into it, whatever windows save."""
    wait_seconds: float
    """Predicted until the first token of one more request, its own prompt aside."""
    preemptions: int
    prefix_queries: int
    """Tokens of prompts that were looked for in the cache."""
    prefix_hits: int
    """The part of them that was found."""


class Schedulers:
    """Makes schedulers that learn the same costs, count the same backlog, and go on with each other's counts."""

    def __init__(
        self,
        config: EngineConfig,
        limits: Limits,
        policy: PolicyFactory,
        model_id: str,
        restore: Restore | None = None,
    ) -> None:
        """Make none yet.

        policy: as the hook ``infeng_policies`` gives it. model_id: of the base's contents. restore: of PrefixCache.
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
        self._latest: tuple[Scheduler, tuple[int, int, int]] | None = None  # and what those before it have counted

    def make(self) -> Scheduler:
        """Return a scheduler that knows no sequence."""
        pool, has_prefixes = BlockPool(self._limits.kv_blocks), self._config.kv_cache.prefix
        policy = self._policy(self._limits)
        self.backlog.shares = getattr(policy, "shares", False)
        scheduler = Scheduler(
            self._limits,
            pool,
            policy,
            step_seconds=self._config.scheduler.step_ms / 1000 or None,
            costs=self.costs,
            prefixes=PrefixCache(tree_of(pool, self._limits), self.key_of, self._restore) if has_prefixes else None,
            backlog=self.backlog,
            name=f"scheduler {self._config.scheduler.use}",
        )
        self._latest = scheduler, (0, 0, 0) if self._latest is None else _counted(*self._latest)
        return scheduler

    def load(self) -> Load:
        """Return how things stand with the scheduler made last; any thread may ask, during a step too."""
        latest = self._latest or (self.make(), (0, 0, 0))
        scheduler, total = latest[0], latest[0].pool.total
        preempted, queries, hits = _counted(*latest)
        return Load(
            running=scheduler.running,
            waiting=max(scheduler.waiting, self.backlog.requests),  # before a step some are in the latter alone
            used_blocks=min(max(0, total - scheduler.free_blocks), total),
            blocks=total,
            tokens=self._limits.tokens,
            wait_seconds=self.backlog.seconds(),
            preemptions=preempted,
            prefix_queries=queries,
            prefix_hits=hits,
        )

    def key_of(self, sequence: RunningRequest) -> bytes | None:
        """Return what a sequence's prefix is shared under; None while its adapters' contents are not known."""
        adapters: tuple[tuple[str, float], ...] = ()
        if sequence.adapters is not None:
            contents = sequence.adapters.known()
            if contents is None:
                return None
            adapters = tuple(zip(contents, sequence.adapters.weights, strict=True))
        about = (adapters, sequence.request.cache_salt)
        if about not in self._keys:
            if len(self._keys) >= 4096:
                self._keys.clear()
            dtype, numerics = self._config.kv_cache.dtype, self._config.kernels.numerics
            self._keys[about] = prefix_key(self._model_id, dtype, numerics, *about)
        return self._keys[about]


def tree_of(pool: BlockPool, limits: Limits) -> PrefixTree:
    """Return the prefix tree for blocks of ``pool`` under ``limits``."""
    return PrefixTree(pool, Needs(limits.windows, limits.max_rows))


def _counted(scheduler: Scheduler, before: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return preemptions, and the tokens looked for and found in the cache, of a scheduler and those before it."""
    preempted, queries, hits = before
    return preempted + scheduler.preempted, queries + scheduler.prefix_queries, hits + scheduler.prefix_hits
