"""The hook of `infeng plugins` that other plugins implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import Command, hookspec

OF_WHEELS = dict.fromkeys(("new", "check", "bench", "rust"), "infeng-kit")
"""Verbs that other wheels of the project bring, so that an error names the one to install."""


@hookspec
def infeng_plugins_verbs(settings: Mapping[str, Any]) -> list[Command]:  # type: ignore[empty-body]
    """Return further verbs, each a Command: `infeng plugins NAME`."""
