"""Hook of this plugin: the command `demo`."""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the demo command."""
    from infeng_demo.command import Demo

    return [Demo()]
