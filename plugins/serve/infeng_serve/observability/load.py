"""The server's load: the body of ``/load``."""

from __future__ import annotations

from infeng_core.api import Engine


def load_values(engine: Engine) -> dict[str, float]:
    """Return the load for routers. Thread-safe.

    ``server_load`` is vLLM's name for the number of requests that run or wait.
    """
    load = engine.load()
    return {
        "server_load": load.running + load.waiting,
        "running": load.running,
        "waiting": load.waiting,
        "kv_cache_usage": load.used_blocks / max(1, load.blocks),
        "predicted_wait_seconds": load.wait_seconds,
    }
