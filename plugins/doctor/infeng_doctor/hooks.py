"""The hook of this plugin."""

from __future__ import annotations

from infeng_core.api import Command, hookimpl


@hookimpl
def infeng_commands() -> list[Command]:
    """Return the commands."""
    from infeng_doctor.doctor import Doctor
    from infeng_doctor.plugins import PluginsCommand

    return [Doctor(), PluginsCommand()]
