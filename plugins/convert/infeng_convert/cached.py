"""The cache of converted models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from infeng_convert.atomic import locked
from infeng_convert.least_recent import trim
from infeng_core.api import cache_root
from infeng_core.api.formats import is_native

REST_SECONDS = 600
"""Seconds since the last use in which a starting process may still be reading an entry, so that it is kept."""


def cached_model(key: str) -> Path:
    """Return the directory of the conversion with ``key``, whether it exists or not."""
    return cache_root() / "models" / key


def most_bytes(setting: int | Literal["auto", "none"]) -> int:
    """Return how many bytes ``model.cache`` allows."""
    if setting == "none":
        return 0
    return shutil.disk_usage(cache_root()).total // 4 if setting == "auto" else setting


def trim_models(most: int, keep: Path) -> list[Path]:
    """Remove the least recently used models until the rest fit in ``most`` bytes; ``keep`` stays. Return the removed
    ones."""
    return trim(most, keep, is_native, rest=REST_SECONDS, guard=locked)
