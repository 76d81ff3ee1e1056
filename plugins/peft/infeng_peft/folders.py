"""Folders of adapters: each subfolder is one, known by its name and found when it is asked for.

Nothing is read at the start, so it costs the same for ten adapters and for a hundred thousand. A lookup looks at one
path; the names are read from the disk only where somebody lists them.
"""

from __future__ import annotations

import heapq
import os
import stat
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

from infeng_core.api import AdapterError, get_logger, require_trusted
from infeng_core.api.adapters import is_adapter_name
from infeng_core.api.formats import distrusted, is_name

MOST_LISTED = 1 << 17
"""Entries of one folder that are listed. Further ones are found by name all the same."""

REST_SECONDS = 0.05
"""A folder that changed more recently may change again within a tick of the clock that stamps it."""

_log = get_logger(__name__)


class AdapterFolders:
    """The adapters of folders, and hub names, by name. Where two have a name, the earlier place counts.

    Any thread may call any method; none of them waits for another.
    """

    def __init__(self, places: Sequence[str]) -> None:
        """places: folders whose subfolders are adapters, and hub names (org/name[@revision]).

        An adapter from the hub has the last part of its name. Raises AdapterError for a place that is missing, no
        folder or could be another user's, and for a hub name whose last part is no name of an adapter or given twice.
        """
        self._folders: list[_Folder] = []
        self._hub: dict[str, str] = {}
        for place in places:
            path = Path(place).expanduser()
            if is_name(place) and not os.path.lexists(path):
                self._add_hub_name(place)
            else:
                self._folders.append(_Folder.at(path))

    def _add_hub_name(self, reference: str) -> None:
        name = reference.partition("@")[0].rpartition("/")[2]
        if not is_adapter_name(name):
            why = f"{name} is no name of an adapter"
            raise AdapterError(f"adapters.directory: {reference}", why, "name it in adapters.paths")
        if name in self._hub:
            why = f"{self._hub[name]} has the same name"
            raise AdapterError(f"adapters.directory: {reference}", why, "name one of them in adapters.paths")
        self._hub[name] = reference

    def find(self, name: str) -> str | None:
        """Return the source of the adapter ``name``, None if there is none.

        Raises AdapterError for one that may not be used: a link out of its folder, a pipe, another user's.
        """
        if not is_adapter_name(name):
            return None
        found = (folder.find(name) for folder in self._folders)
        return next((source for source in found if source is not None), None) or self._hub.get(name)

    def names(self, after: str = "", most: int = 1000) -> list[str]:
        """Return the names that come next after ``after``, sorted, at most ``most`` of them."""
        lists = [folder.names() for folder in self._folders] + [sorted(self._hub)]
        rests = [islice(names, bisect_right(names, after), None) for names in lists]
        found: list[str] = []
        for name in heapq.merge(*rests):
            if len(found) == most:
                break
            if not found or found[-1] != name:  # in two places
                found.append(name)
        return found


@dataclass
class _Folder:
    """One folder of adapters."""

    path: str
    listed: tuple[tuple[int, ...], list[str]] | None = None  # the folder's stamp, and its sorted names
    is_told: bool = False  # the log says that not all are listed

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @staticmethod
    def at(path: Path) -> _Folder:
        """Return the folder at a path; raises AdapterError."""
        remedy = "give a folder whose subfolders are adapters, or org/name"
        try:
            is_folder = path.is_dir()
        except (OSError, ValueError) as error:
            raise AdapterError(
                f"adapters.directory: {str(path)[:200]}", f"is no usable path ({error})", remedy
            ) from None
        if not is_folder:
            why = "is no folder" if path.exists() else "is not there"
            raise AdapterError(f"adapters.directory: {path}", why, remedy)
        require_trusted(path, AdapterError, "give a folder that only you can write")
        return _Folder(str(path.absolute()))

    def find(self, name: str) -> str | None:
        path = f"{self.path}/{name}"
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                found = self._behind(path, name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            why = f"it cannot be looked at ({error.strerror})"
            raise AdapterError(f"adapter {name}", why, "check the folder and its permissions") from None
        if not stat.S_ISDIR(found.st_mode):
            return None if stat.S_ISREG(found.st_mode) else self._refuse(name, "is a pipe or a device, and no folder")
        if why := distrusted(found):
            self._refuse(name, f"{why}, so it is not trusted")
        return path

    @staticmethod
    def _refuse(name: str, why: str) -> NoReturn:
        raise AdapterError(
            f"adapter {name}", f"its entry in adapters.directory {why}", "put a folder of your own there"
        )

    def _behind(self, path: str, name: str) -> os.stat_result:
        """Return what a link within the folder leads to; raises AdapterError for one that leads out."""
        home = os.path.realpath(self.path).rstrip("/")  # now: the folder may itself be a link, to be switched
        if not os.path.realpath(path).startswith(f"{home}/"):
            self._refuse(name, "is a link that leads out of the folder")
        return os.stat(path)  # noqa: PTH116  # the path is a text

    def names(self) -> list[str]:
        """Return the sorted names, read again if the folder has changed; [] where it cannot be read."""
        with self._lock:
            try:
                stamp = self._stamp()
                if self.listed is None or self.listed[0] != stamp or time.time() - stamp[-1] / 1e9 < REST_SECONDS:
                    self.listed = stamp, self._read()
            except OSError as error:
                _log.warning("a folder of adapters cannot be listed", folder=self.path, error=str(error))
                return []
            return self.listed[1]

    def _stamp(self) -> tuple[int, ...]:
        found = os.stat(self.path)  # noqa: PTH116  # the path is a text
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def _read(self) -> list[str]:
        with os.scandir(self.path) as entries:
            names = {name for entry in islice(entries, MOST_LISTED) if (name := self._name_of(entry))}
            if next(entries, None) is not None and not self.is_told:
                self.is_told = True
                remedy = "split it; all of them are found by name"
                _log.warning("a folder of adapters is too long to be listed", folder=self.path, remedy=remedy)
        return sorted(names)

    def _name_of(self, entry: os.DirEntry[str]) -> str:
        """Return the name of the adapter that an entry of the folder may be, "" if it is none."""
        try:
            if not is_adapter_name(entry.name) or not entry.is_dir():
                return ""
            return entry.name if not entry.is_symlink() or self.find(entry.name) else ""
        except (OSError, AdapterError):  # removed meanwhile, a loop of links, a link out of the folder
            return ""
