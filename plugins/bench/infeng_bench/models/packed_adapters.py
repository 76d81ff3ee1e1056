"""Thousands of different adapters for one model, packed, each in a folder of one folder: what ``adapters.directory``
serves.

One random adapter is packed. The others have its bytes except for the B of one tensor, so each has contents of its own
and takes a millisecond to make. A folder whose adapter is never asked for stays empty, since nothing reads it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from infeng_peft.api import describe, pack, weights_of, write_artifact

from infeng_bench.models.adapters import peft_directory
from infeng_bench.models.cache import digest
from infeng_core.api import Engine, cache_root, require_own
from infeng_core.api.adapters import ARTIFACT_FILE, AdapterDtype, AdapterImage, adapter_digest, find_adapter

VERSION = 1  # part of the cache key; raised when the written files change
STORAGE: AdapterDtype = "int8"  # of A and B


def name_of(number: int) -> str:
    """Return the name of an adapter; 0 is the most popular one."""
    return f"a{number:06}"


def folder_of(
    engine: Engine, shape: str | Path, count: int, asked: Iterable[int], *, rank: int, targets: str
) -> tuple[Path, int]:
    """Return a folder of ``count`` adapters for an engine's model, and the bytes of one; made as far as it is missing.

    shape: as ``peft_directory`` takes it. asked: the numbers of those whose files are needed. Raises the errors of
    ``peft_directory``, and ResourceError if the disk is full or another user could have written there.
    """
    key = digest([VERSION, engine.model.id, rank, targets, STORAGE])
    folder = cache_root() / "bench" / "directories" / f"{engine.model.config.family}-r{rank}-{key}-{count}"
    require_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, reader = find_adapter(peft_directory(shape, rank, targets), engine.plugins)
    assert reader is not None  # of a PEFT directory
    first = pack(weights_of(reader, path, engine.model.config), engine.model, STORAGE)
    there = {entry.name for entry in os.scandir(folder)}
    for number in range(count):
        if name_of(number) not in there:
            (folder / name_of(number)).mkdir(exist_ok=True)
    for number in sorted(set(asked)):
        if not (folder / name_of(number) / ARTIFACT_FILE).exists():
            _write(varied(first, number), engine, folder, name_of(number))
    return folder, first.data.nbytes


def varied(image: AdapterImage, number: int) -> AdapterImage:
    """Return an adapter whose first B has the random numbers of ``number``; image: one that is stored as int8."""
    data = image.data.copy()
    arrays = next(iter(image.pieces.views(data).values()))
    b = next(array for key, array in arrays.items() if key.endswith("b"))
    b[...] = np.random.default_rng(number).integers(-127, 128, b.shape, np.int8)
    return AdapterImage(image.spec, image.pieces, data, adapter_digest(data), image.base_name)


def _write(image: AdapterImage, engine: Engine, folder: Path, name: str) -> None:
    """Write an adapter into the empty folder of its name, completely or not at all."""
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as made:
        write_artifact(image, describe(image, engine.model), Path(made))
        (Path(made) / ARTIFACT_FILE).replace(folder / name / ARTIFACT_FILE)
