"""Hook of this plugin: the command ``chat``."""

from infeng_core.api import hookimpl


@hookimpl
def infeng_commands() -> list[object]:
    """Return the chat command."""
    from infeng_chat.talk.command import Chat

    return [Chat()]
