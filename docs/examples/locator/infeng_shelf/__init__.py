"""A locator: ``shelf://NAME`` is a folder of the setting ``shelf.folder``, such as a share that a team keeps its models
and adapters on. ``infeng run shelf://tiny --lora poet=shelf://poet --set shelf.folder=/srv/models``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_core.api import ModelError, hookimpl
from infeng_core.api.formats import Located, Locator

NAME = re.compile(r"shelf://(?P<name>\w[\w-]*)")


class Shelf:
    """What the hook gives."""

    def __init__(self, folder: Path) -> None:
        """Find names in ``folder``."""
        self._folder = folder

    def locate(self, reference: str, kind: Located) -> Path | None:
        """Return the folder of a name; raises ModelError where there is none."""
        found = NAME.fullmatch(reference)
        if found is None:
            return None
        path = self._folder / found["name"]
        if not path.is_dir():
            raise ModelError(reference, f"is no {kind} in {self._folder}", "check the name, or set shelf.folder")
        return path

    def refuse(self, reference: str, files: Sequence[str]) -> None:
        """Raise nothing: a shelf is no repository of the hub."""


@hookimpl
def infeng_locators(settings: Mapping[str, Any]) -> dict[str, Locator]:
    """Return the locator."""
    return {"shelf": Shelf(Path(settings["folder"]).expanduser())}
