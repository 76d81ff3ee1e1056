"""The plugin's hooks; the reader is imported when its hook is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import AdapterDirectoryFactory, Command, hookimpl

if TYPE_CHECKING:
    from infeng_core.api.adapters import AdapterReader


@hookimpl
def infeng_adapter_readers() -> dict[str, AdapterReader]:
    """The reader of PEFT directories, and that of version 1 of the engine's own format."""
    from infeng_peft.first_version import FirstVersionReader
    from infeng_peft.reader import PeftReader

    return {"first_version": FirstVersionReader(), "peft": PeftReader()}


@hookimpl
def infeng_adapter_directories() -> dict[str, AdapterDirectoryFactory]:
    """The folders and hub names of ``adapters.directory``."""
    from infeng_peft.folders import AdapterFolders

    return {"folders": AdapterFolders}


@hookimpl
def infeng_commands() -> list[Command]:
    """``infeng convert-adapter``."""
    from infeng_peft.command import ConvertAdapter

    return [ConvertAdapter()]
