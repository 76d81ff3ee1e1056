"""What this wheel adds to the engine: the command `bench`, and a scheduler for its measurements."""

from infeng_core.api import PolicyFactory, hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the bench command."""
    from infeng_bench.command import Bench

    return [Bench()]


@hookimpl
def infeng_policies() -> dict[str, PolicyFactory]:
    """Return the scheduler of two groups that take turns."""
    from infeng_bench.engine.alternating import NAME, AlternatingGroups

    return {NAME: AlternatingGroups}
