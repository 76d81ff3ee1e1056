"""Hooks of this plugin: the commands ``serve`` and ``top``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands(settings: Mapping[str, Any]) -> list[object]:
    """Return the commands. settings: the defaults, with those of the environment."""
    from infeng_serve.command import Serve
    from infeng_serve.observability.top import Top

    return [Serve(settings), Top()]
