"""How busy the server is: the body of ``/load``."""

from __future__ import annotations

from infeng_core.api import Engine


def load_values(engine: Engine) -> dict[str, float]:
    """Return what a router wants to know; any thread may ask, at any time.

    ``server_load`` is vLLM's name for the requests that there are.
    """
    load = engine.load()
    return {
        "server_load": load.running + load.waiting,
        "running": load.running,
        "waiting": load.waiting,
        "kv_cache_usage": load.used_blocks / max(1, load.blocks),
        "predicted_wait_seconds": load.wait_seconds,
    }
