"""Settings of the engine that a server has otherwise than a program, where nobody sets them."""

from __future__ import annotations

import dataclasses
from typing import Any

from infeng_core.api import EngineConfig, Plugins, get_logger
from infeng_serve.auth import Keys

MAX_WAIT_MS = 5000
"""``scheduler.max_wait_ms``: longer than a burst takes, and shorter than people wait."""

FAIR = "fair"
"""``scheduler.use`` where tenants share: first-come lets one that fills the engine keep the others waiting."""

_log = get_logger(__name__)


def as_served(config: EngineConfig, keys: Keys, plugins: Plugins) -> EngineConfig:
    """Return a configuration whose calls wait ``MAX_WAIT_MS`` for others at most, and whose tenants share fairly.

    plugins: those of ``config``. What somebody has set stays. Without the wheel of the scheduler ``fair`` a warning
    names it.
    """
    config = _unless_set(config, "max_wait_ms", MAX_WAIT_MS)
    if not keys.are_shared or config.provenance["scheduler.use"] != "default":
        return config
    if FAIR in plugins.names("policies"):
        return _unless_set(config, "use", FAIR)
    why = "one that fills the engine keeps the others waiting"
    _log.warning("tenants are served first-come", reason=why, remedy="install the wheel infeng-fair")
    return config


def _unless_set(config: EngineConfig, name: str, value: Any) -> EngineConfig:
    if config.provenance[f"scheduler.{name}"] != "default":
        return config
    scheduler = dataclasses.replace(config.scheduler, **{name: value})
    provenance = {**config.provenance, f"scheduler.{name}": "infeng serve"}
    return dataclasses.replace(config, scheduler=scheduler, provenance=provenance)
