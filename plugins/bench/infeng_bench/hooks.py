"""The hooks of this wheel: the command `bench`, and a scheduling policy for its measurements."""

from infeng_core.api import PolicyFactory, hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the bench command."""
    from infeng_bench.command import Bench

    return [Bench()]


@hookimpl
def infeng_policies() -> dict[str, PolicyFactory]:
    """Return the policy of two groups that take turns."""
    from infeng_bench.engine.alternating import NAME, AlternatingGroups

    return {NAME: AlternatingGroups}
