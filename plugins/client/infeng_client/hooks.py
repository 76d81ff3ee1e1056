"""Hooks of this plugin: the commands `adapters` and `ask`, and ``--server`` of `run`.

Only this module and the commands import the engine.
"""

from __future__ import annotations

from infeng_core.api import RunOptions, hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the commands."""
    from infeng_client.commands.adapters import AdaptersCommand
    from infeng_client.commands.ask import Ask

    return [AdaptersCommand(), Ask()]


@hookimpl
def infeng_run_options() -> dict[str, RunOptions]:
    """Return ``--server`` of the command ``run``."""
    from infeng_client.commands.remote import ServerOptions

    return {"server": ServerOptions()}
