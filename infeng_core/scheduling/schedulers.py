"""From an engine's settings to its schedulers: one at a time, and another after every interrupt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.scheduling.admission import Backlog, Bounds
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel
from infeng_core.scheduling.policy import PolicyFactory
from infeng_core.scheduling.prefix import PrefixTree, prefix_key
from infeng_core.scheduling.prefix_cache import PrefixCache, Restore
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.step import Limits, Sequence

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


class Schedulers:
    """Makes schedulers that learn the same costs and count the same backlog."""

    def __init__(
        self,
        config: EngineConfig,
        limits: Limits,
        policy: PolicyFactory,
        model_id: str,
        restore: Restore | None = None,
    ) -> None:
        """Make none yet.

        policy: as the hook ``infeng_schedulers`` gives it. model_id: of the base's contents. restore: of PrefixCache.
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

    def make(self) -> Scheduler:
        """Return a scheduler that knows no sequence."""
        pool, has_prefixes = BlockPool(self._limits.kv_blocks), self._config.kv_cache.prefix
        return Scheduler(
            self._limits,
            pool,
            self._policy(self._limits),
            step_seconds=self._config.scheduler.step_ms / 1000 or None,
            costs=self.costs,
            prefixes=PrefixCache(PrefixTree(pool), self.key_of, self._restore) if has_prefixes else None,
            backlog=self.backlog,
        )

    def key_of(self, sequence: Sequence) -> bytes | None:
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
