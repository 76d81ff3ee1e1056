"""How much an engine may do at a time: rows, requests and context by the manifest, the model and the memory."""

from __future__ import annotations

from infeng_core import _native, kvcache
from infeng_core.formats.memory import available_bytes
from infeng_core.models.config import ModelConfig
from infeng_core.plug.config import AdaptersSection, EngineConfig
from infeng_core.scheduler import Limits
from infeng_core.speculate import MOST_ROWS

ADAPTERS_SHARE = 0.25
"""``adapters.memory: auto`` is this share of the memory that is available beside weights and cache."""


def limits_of(config: EngineConfig, shape: ModelConfig) -> tuple[Limits, str]:
    """Return the bounds of every batch, and what bounds the context, for messages.

    Raises ResourceError where the cache does not fit.
    """
    scheduler, speculation = config.scheduler, config.speculation
    running = min(scheduler.max_running, scheduler.max_batch_tokens)
    guesses = 0 if speculation.use == "none" else min(running * speculation.tokens, MOST_ROWS)
    block_bytes = _native.KvCache.bytes_per_block(
        config.kv_cache.dtype, layers=shape.layers, kv_heads=shape.kv_heads, head_dim=shape.head_dim
    )
    cache = kvcache.size(
        config.kv_cache.memory,
        block_bytes=block_bytes,
        context=shape.max_positions,
        max_running=running,
        available_bytes=available_bytes(),
    )
    context = min(shape.max_positions, cache.tokens)
    limits = Limits(
        max_rows=scheduler.max_batch_tokens,
        max_samples=min(running + guesses, scheduler.max_batch_tokens),
        max_segments=running,
        context=context,
        kv_blocks=cache.blocks,
    )
    return limits, "the model's own" if context == shape.max_positions else cache.reason


def adapters_budget(config: AdaptersSection, kv_bytes: int) -> int | None:
    """Return the bytes that adapters may take together; None where the available memory is not known.

    kv_bytes: of the cache, most of which is only touched as it fills.
    """
    if config.memory != "auto":
        return config.memory
    available = available_bytes()
    return None if available is None else int(max(0, available - kv_bytes) * ADAPTERS_SHARE)
