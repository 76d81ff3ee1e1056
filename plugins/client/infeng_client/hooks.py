"""What this wheel adds where the engine is installed too: the command `ask`. Nothing else here knows the engine."""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the command."""
    from infeng_client.command import Ask

    return [Ask()]
