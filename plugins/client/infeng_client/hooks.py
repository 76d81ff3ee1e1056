"""What this wheel adds where the engine is installed too: the commands `adapters` and `ask`.

No module but these commands' knows the engine.
"""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the commands."""
    from infeng_client.commands.adapters import AdaptersCommand
    from infeng_client.commands.ask import Ask

    return [AdaptersCommand(), Ask()]
