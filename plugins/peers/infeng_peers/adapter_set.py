"""The adapters of an engine under measurement, and the time to load them."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_peft.api import convert_adapter

from infeng_core.api import UsageError
from infeng_core.api.formats import is_artifact

if TYPE_CHECKING:
    from infeng_core.api import Engine


class AdapterSet:
    """Loads adapters into an engine. The first load of a PEFT directory reads it directly and then converts it; later
    loads read the engine-native form. ``close`` deletes the converted adapters, which lie in a temporary folder.
    """

    def __init__(self, engine: Engine) -> None:
        """Load adapters into ``engine``."""
        self._engine = engine
        self._folder = Path(tempfile.mkdtemp(prefix="infeng-adapters-"))
        self._numbers = itertools.count()
        self._converted: dict[str, Path] = {}

    def replace(self, wanted: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Replace the engine's adapters by ``wanted``, {"name", "path", "scale"}; return each one's load time in ms.

        All are pinned in memory if the engine has room for all. Raises UsageError for an entry of another form, and
        the errors of ``engine.adapters.load``.
        """
        try:
            asked = [(str(one["name"]), str(one["path"]), float(one["scale"])) for one in wanted]
        except (KeyError, TypeError, ValueError) as error:
            remedy = 'send {"adapters": [{"name": "a", "path": "/adapters/a", "scale": 1.0}]}'
            raise UsageError("adapters", f"not in the form that is expected ({error})", remedy) from error
        for info in self._engine.adapters.infos():
            self._engine.adapters.unload(info.name)
        self._forget(keeping={path for _, path, _ in asked})
        all_fit = len(asked) <= self._engine.config.adapters.most_resident
        taken = {}
        for name, path, scale in asked:
            begin = time.perf_counter()
            self._engine.adapters.load(name, self._converted.get(path, path), scale=scale, pin=True)
            taken[name] = 1000 * (time.perf_counter() - begin)
            if not all_fit:
                self._engine.adapters.pin(name, pinned=False)
        for _, path, _ in asked:
            if path not in self._converted and not is_artifact(Path(path)):
                place = self._folder / f"{next(self._numbers)}"
                config = self._engine.config
                self._converted[path] = convert_adapter(
                    path, place, self._engine.model, config.adapters.dtype, providers=self._engine.plugins
                ).path
        return taken

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each loaded adapter."""
        return {info.name: info.bytes or 0 for info in self._engine.adapters.infos()}

    def _forget(self, keeping: set[str]) -> None:
        for path in [path for path in self._converted if path not in keeping]:
            shutil.rmtree(self._converted.pop(path), ignore_errors=True)

    def close(self) -> None:
        """Delete the converted adapters."""
        shutil.rmtree(self._folder, ignore_errors=True)
