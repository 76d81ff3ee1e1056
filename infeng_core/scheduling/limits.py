"""The bounds of an engine's batches: rows, requests and context by the manifest, the model and the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.batch import Limits
from infeng_core.scheduling import blocks
from infeng_core.scheduling.drafts import MOST_ROWS
from infeng_core.scheduling.tables import Needs

if TYPE_CHECKING:
    from infeng_core.backends.interface import Backend
    from infeng_core.models.config import ModelConfig
    from infeng_core.settings.config import AdaptersSection, EngineConfig

ADAPTERS_SHARE = 0.25
"""``adapters.memory: auto`` is this share of the memory that weights and cache leave."""


FEW_RESIDENT = 16
"""``adapters.max_resident: auto`` where the available memory is unknown, so that no budget bounds their number."""


def limits_of(config: EngineConfig, shape: ModelConfig, backend: Backend, pending: int = 0) -> tuple[Limits, str]:
    """Return the bounds of every batch, and the setting that bounds the context, for messages.

    pending: bytes of weights that will be loaded before the cache. Raises ResourceError if the cache does not fit.
    """
    available = backend.available_bytes()
    scheduler, speculation = config.scheduler, config.speculation
    positions = min(shape.max_positions, config.model.context or shape.max_positions)
    running = min(scheduler.max_running, scheduler.max_batch_tokens)
    windows = windows_of(backend, shape, config)
    needs = Needs(windows, scheduler.max_batch_tokens)
    guesses = min(running * speculation.most, MOST_ROWS)
    cache = blocks.size(
        config.kv_cache.memory,
        block_bytes=backend.block_bytes(shape, config),
        context=positions,
        max_running=running,
        available_bytes=None if available is None else max(0, available - pending),
        groups=needs.groups,
        each=needs.most(positions),
    )
    context = min(positions, needs.longest(cache.blocks) or positions)
    limits = Limits(
        max_rows=scheduler.max_batch_tokens,
        max_samples=min(running + guesses, scheduler.max_batch_tokens),
        max_segments=running,
        context=context,
        kv_blocks=cache.blocks,
        windows=windows,
    )
    if context < positions:
        return limits, cache.reason
    return limits, "the model's own" if context == shape.max_positions else f"model.context is {context}"


def windows_of(backend: Backend, shape: ModelConfig, config: EngineConfig) -> tuple[int, ...]:
    """Return the attention window of each group of layers with blocks of its own; (0,) is one group of all."""
    of_backend = getattr(backend, "block_windows", None)
    windows: tuple[int, ...] = (0,) if of_backend is None else of_backend(shape, config)
    return windows


def adapters_budget(config: AdaptersSection, available: int | None, kv_bytes: int) -> int | None:
    """Return the bytes that adapters may take together; None if the available memory is unknown.

    available: as the backend reports. kv_bytes: of the cache, most of which is only touched as it fills.
    """
    if config.memory != "auto":
        return config.memory
    return None if available is None else int(max(0, available - kv_bytes) * ADAPTERS_SHARE)


def most_resident(config: AdaptersSection, budget: int | None) -> int:
    """Return the most adapters in memory. budget: their bytes, as ``adapters_budget`` returns it."""
    return FEW_RESIDENT if config.max_resident == "auto" and budget is None else config.most_resident
