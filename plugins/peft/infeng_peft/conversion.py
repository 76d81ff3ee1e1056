"""Conversion of an adapter, opened by a reader, to an engine-native one."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from infeng_convert.api import locked, replacing, require_ours

from infeng_core.api import AdapterError, Plugins, get_logger
from infeng_core.api.adapters import (
    ARTIFACT_FILE,
    AdapterDtype,
    Artifact,
    find_adapter,
    read_artifact,
    read_header,
)
from infeng_core.api.formats import LoadedModel
from infeng_peft.artifact import describe, write_artifact
from infeng_peft.packing import pack
from infeng_peft.reading import weights_of


@dataclass(frozen=True)
class AdapterConversion:
    """The result of a conversion. ``reused``: it existed already. ``bound``: it fits only this base."""

    path: Path
    id: str
    nbytes: int
    seconds: float
    dtype: AdapterDtype
    bound: bool
    reused: bool


def convert_adapter(
    reference: str | Path,
    destination: Path,
    model: LoadedModel,
    dtype: AdapterDtype,
    *,
    force: bool = False,
    providers: Plugins,
) -> AdapterConversion:
    """Pack an adapter over ``model`` into the directory ``destination``, which appears complete or not at all.

    An existing artifact with other contents is replaced only with ``force``; any other existing file or directory is
    left alone. Raises AdapterError for a bad adapter or destination, ResourceError for a full disk.
    """
    start = time.monotonic()
    path, reader = find_adapter(reference, providers)
    if reader is None:
        raise AdapterError(f"{path}", "is converted already", "convert the original PEFT directory")
    image = pack(weights_of(reader, path, model.config), model, dtype)
    image.reach(model, path)  # raises
    artifact = describe(image, model)
    destination = destination.absolute()
    wait = f"{destination}: another process writes it; waiting"
    with locked(destination, waiting=lambda: get_logger(__name__).warning(wait)):
        reused = _is_there(destination, artifact, force)
        if not reused:
            with replacing(destination, lambda: _require_ours(destination)) as folder:
                write_artifact(image, artifact, folder)
    seconds = time.monotonic() - start
    return AdapterConversion(destination, artifact.id, image.data.nbytes, seconds, dtype, image.spec.is_bound, reused)


def _is_there(destination: Path, wanted: Artifact, force: bool) -> bool:
    """Return whether the destination holds the wanted artifact; raise AdapterError if it must not be replaced."""
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return False
    with contextlib.suppress(AdapterError):
        if not force and read_artifact(destination).id == wanted.id:
            return True
    _require_ours(destination)
    if force:
        return False
    raise AdapterError(f"{destination}", "exists already", "give --force to replace it, or choose another destination")


def _require_ours(destination: Path) -> None:
    require_ours(destination, "engine-native adapter", _written, AdapterError)


def _written(directory: Path) -> set[str]:
    """Return the names of all files of an artifact of any version; raises an InfengError for any other directory."""
    if not {"infeng_adapter", "adapter"} <= read_header(directory / ARTIFACT_FILE).metadata.keys():
        raise AdapterError(f"{directory}", "holds no engine-native adapter")
    return {ARTIFACT_FILE}
