"""The hook of this wheel: the command `quality`."""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the command."""
    from infeng_quality.command import Quality

    return [Quality()]
