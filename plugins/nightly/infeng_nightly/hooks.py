"""The hook of this wheel: the commands `nightly` and `dashboard`."""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the commands."""
    from infeng_nightly.command import Dashboard, Nightly

    return [Nightly(), Dashboard()]
