"""What this plugin adds: the command ``serve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands(settings: Mapping[str, Any]) -> list[object]:
    """Return the command; ``settings`` are the defaults and those of the environment."""
    from infeng_serve.command import Serve

    return [Serve(settings)]
