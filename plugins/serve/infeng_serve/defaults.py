"""Engine settings whose defaults differ in a server."""

from __future__ import annotations

import dataclasses
from typing import Any

from infeng_core.api import EngineConfig, Plugins, get_logger
from infeng_serve.auth import Keys

MAX_WAIT_MS = 5000
"""``scheduler.max_wait_ms``: longer than a burst of calls takes, and shorter than people wait."""

FAIR = "fair"
"""``scheduler.use`` with several tenants: under first-come one tenant could keep the others waiting."""

_log = get_logger(__name__)


def as_served(config: EngineConfig, keys: Keys, plugins: Plugins) -> EngineConfig:
    """Return a configuration in which calls queue for at most ``MAX_WAIT_MS`` and tenants share fairly.

    plugins: the plugins of ``config``. Explicit settings are kept. Without the wheel of the scheduler ``fair``, a
    warning names it.
    """
    config = _unless_set(config, "max_wait_ms", MAX_WAIT_MS)
    if not keys.are_shared or config.provenance["scheduler.use"] != "default":
        return config
    if FAIR in plugins.names("policies"):
        return _unless_set(config, "use", FAIR)
    why = "a tenant that fills the engine keeps the others waiting"
    _log.warning("tenants are served first-come", reason=why, remedy="install the wheel infeng-fair")
    return config


def _unless_set(config: EngineConfig, name: str, value: Any) -> EngineConfig:
    if config.provenance[f"scheduler.{name}"] != "default":
        return config
    scheduler = dataclasses.replace(config.scheduler, **{name: value})
    provenance = {**config.provenance, f"scheduler.{name}": "infeng serve"}
    return dataclasses.replace(config, scheduler=scheduler, provenance=provenance)
