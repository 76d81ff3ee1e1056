"""Conversion of folders of adapters: the base is opened once, and an adapter that fails does not stop the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from infeng_core.api import AdapterError, Plugins, UsageError
from infeng_core.api.adapters import AdapterDtype, is_adapter
from infeng_core.api.formats import LoadedModel
from infeng_peft.conversion import AdapterConversion, convert_adapter
from infeng_peft.folders import AdapterFolders

PAGE = 1000


@dataclass
class Packed:
    """The results of many conversions, by the adapters' names."""

    made: dict[str, AdapterConversion] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """The errors of those that failed."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Source:
    """An adapter to be packed."""

    reference: str
    directory: AdapterFolders | None = None  # the folder of adapters that it is in

    def checked(self, name: str) -> str:
        """Return the reference; raises AdapterError for a link out of its folder, or another user's."""
        found = self.reference if self.directory is None else self.directory.find(name)
        if found is None:
            raise AdapterError(self.reference, "it has been removed", "convert the others again")
        return found


def sources(words: Sequence[str], providers: Plugins) -> dict[str, Source]:
    """Return the adapters that are meant, by name: adapters themselves, and those in folders of adapters.

    Raises UsageError for two of one name and for a folder without any, AdapterError for a folder that cannot be used.
    """
    found: dict[str, Source] = {}
    for word in words:
        count = 0
        for name, source in _of(word, providers):
            count += 1
            if name in found:
                why = f"{found[name].reference} has the same name"
                raise UsageError(f"adapter {source.reference}", why, "convert them into two folders")
            found[name] = source
        if not count:
            raise UsageError(word, "holds no adapter, and no folder that could be one", "give a folder of adapters")
    return found


def _of(word: str, providers: Plugins) -> Iterator[tuple[str, Source]]:
    path = Path(word).expanduser()
    if not path.is_dir() or is_adapter(path, providers):
        yield (path.resolve().name if path.exists() else word.partition("@")[0].rpartition("/")[2]), Source(word)
        return
    directory, after = AdapterFolders([word]), ""
    while names := directory.names(after, PAGE):
        after = names[-1]
        yield from ((name, Source(str(path / name), directory)) for name in names)


def convert_all(
    found: Mapping[str, Source],
    folder: Path,
    model: LoadedModel,
    dtype: AdapterDtype,
    *,
    force: bool = False,
    providers: Plugins,
) -> Packed:
    """Pack adapters over ``model``, each into the subfolder of ``folder`` that has its name.

    Progress is shown where standard error is a terminal. Raises ResourceError for a full disk; what was packed stays.
    """
    packed, begin = Packed(), time.monotonic()
    with tqdm(found.items(), unit="adapter", disable=None, file=sys.stderr) as bar:
        for name, source in bar:
            try:
                made = convert_adapter(
                    source.checked(name), folder / name, model, dtype, force=force, providers=providers
                )
            except AdapterError as error:
                packed.failed[name] = str(error)
            else:
                packed.made[name] = made
    packed.seconds = time.monotonic() - begin
    return packed
