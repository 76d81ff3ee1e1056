"""The plugin's hook; the command imports the engine only inside ``run``."""

from __future__ import annotations

from infeng_core.api import Command, hookimpl


@hookimpl
def infeng_commands() -> list[Command]:
    """``infeng run``."""
    from infeng_run.command import Run

    return [Run()]
