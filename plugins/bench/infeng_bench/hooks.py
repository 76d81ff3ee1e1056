"""What this wheel adds to the engine: the command `bench`."""

from infeng_core.plug import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the bench command."""
    from infeng_bench.command import Bench

    return [Bench()]
