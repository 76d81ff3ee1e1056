"""Engine settings whose defaults differ in a server."""

from __future__ import annotations

import dataclasses
from typing import Any

from infeng_core.api import EngineConfig, Plugins, get_logger
from infeng_serve.auth import Keys

MAX_WAIT_MS = 5000
"""``scheduler.max_wait_ms``: longer than a burst of calls takes, and shorter than people wait."""

NICE = 10
"""``threads.nice``: workers occupy all cores, and the kernel lets the thread that does HTTP run as soon as it wakes."""

FAIR = "fair"
"""``scheduler.use`` with several tenants: under first-come one tenant could keep the others waiting."""

_log = get_logger(__name__)


def as_served(config: EngineConfig, keys: Keys, plugins: Plugins) -> EngineConfig:
    """Return a configuration in which calls queue for at most ``MAX_WAIT_MS``, tenants share fairly, and workers stand
    behind the thread that does HTTP.

    plugins: the plugins of ``config``. Explicit settings are kept. Without the wheel of the scheduler ``fair``, a
    warning names it.
    """
    config = _unless_set(config, "scheduler", "max_wait_ms", MAX_WAIT_MS)
    config = _unless_set(config, "threads", "nice", NICE)
    if not keys.are_shared or config.provenance["scheduler.use"] != "default":
        return config
    if FAIR in plugins.names("policies"):
        return _unless_set(config, "scheduler", "use", FAIR)
    why = "a tenant that fills the engine keeps the others waiting"
    _log.warning("tenants are served first-come", reason=why, remedy="install the wheel infeng-fair")
    return config


def _unless_set(config: EngineConfig, section: str, name: str, value: Any) -> EngineConfig:
    key = f"{section}.{name}"
    if config.provenance[key] != "default":
        return config
    changed = dataclasses.replace(getattr(config, section), **{name: value})
    return dataclasses.replace(config, **{section: changed}, provenance={**config.provenance, key: "infeng serve"})
