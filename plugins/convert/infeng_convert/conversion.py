"""Conversion of a model, opened by a reader, to an engine-native directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_convert import atomic, recipes
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.manifest_file import write_manifest
from infeng_convert.packer import Packer, padded_bytes
from infeng_convert.progress import Progress, Show
from infeng_convert.quantizers import DEFAULT, QuantizerChoice
from infeng_convert.recipes import Recipe
from infeng_convert.resume import Journal, held
from infeng_convert.shards import plan_shards, write_shard
from infeng_convert.spec import ConversionSpec
from infeng_convert.tensor_files import Entry
from infeng_core.api import InfengError, ModelError, ResourceError, get_logger
from infeng_core.api.formats import (
    FormatChoice,
    FormatLookup,
    artifact_manifest,
    brought_by,
    builtin_format,
    gigabytes,
    reading,
)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. ``reused``: it existed already, with the same source, formats and quantizer."""

    path: Path
    id: str
    nbytes: int  # of packed tensors and vectors
    seconds: float
    formats: Mapping[str, str]
    quantizer: Mapping[str, Any]  # as in the manifest: name; for a plugin's also plugin, version, settings
    reused: bool
    rounded_again: Mapping[str, str] = field(default_factory=dict)  # "Q4_K -> int8-row": "24 tensors"; empty if reused
    few_rows: Mapping[str, int] = field(default_factory=dict)  # experts with few rows of text; empty if reused


def convert(
    source: Path,
    destination: Path,
    choice: FormatChoice,
    *,
    lookup: FormatLookup = builtin_format,
    quantizer: QuantizerChoice = DEFAULT,
    force: bool = False,
    threads: int = 2,
    progress: Show = True,
) -> Conversion:
    """Do as ``convert_to`` with formats, and with a ``quantizer`` without statistics."""
    spec = ConversionSpec(choice, lookup, quantizer)
    return convert_to(spec, source, destination, force=force, threads=threads, progress=progress)


def convert_to(
    spec: ConversionSpec,
    source: Path,
    destination: Path,
    *,
    force: bool = False,
    threads: int = 2,
    progress: Show = True,
) -> Conversion:
    """Pack ``source``, opened by the reader that ``spec.reader`` finds, into the engine-native directory
    ``destination``.

    The destination appears complete or not at all: the work goes to a temporary name beside it. A second process with
    the same task waits and uses the first one's result. An existing engine-native directory of another origin is
    replaced only with ``force``; any other existing file or directory is left alone. About one tensor is in memory at
    a time. If Ctrl-C or a kill interrupts a calibrated conversion, the next one with the same arguments continues it.
    ``progress`` shows a bar if stderr is a terminal. Raises ModelError for a bad source, ResourceError for a full
    disk, PluginError for a quantizer with invalid results, UsageError for one without a tensor to quantize.
    """
    start = time.monotonic()
    require_original(source)
    key = spec.key(source)

    def opened() -> tuple[Checkpoint, dict[str, bytes]]:
        with reading(source):
            checkpoint = spec.reader(source).open(source)
            return checkpoint, checkpoint.side_files()

    return _convert(_Job(opened, destination.absolute(), key, spec, threads, progress, force), start)


def pack_checkpoint(
    checkpoint: Checkpoint,
    destination: Path,
    choice: FormatChoice,
    key: str,
    *,
    lookup: FormatLookup = builtin_format,
    threads: int = 2,
    progress: Show = True,
) -> Conversion:
    """Do as ``convert`` with a model whose values may come from anywhere; ``key`` identifies them."""
    start = time.monotonic()

    def opened() -> tuple[Checkpoint, dict[str, bytes]]:
        return checkpoint, checkpoint.side_files()

    return _convert(_Job(opened, destination.absolute(), key, ConversionSpec(choice, lookup), threads, progress), start)


@dataclass(frozen=True)
class _Job:
    """One conversion."""

    opened: Callable[[], tuple[Checkpoint, dict[str, bytes]]]  # returns the model, and the files beside its weights
    destination: Path  # absolute
    key: str  # identifies the model and ``spec``
    spec: ConversionSpec
    threads: int
    progress: Show
    force: bool = False

    def require_ours(self) -> None:
        """Raise ModelError if the destination holds anything but a conversion."""
        atomic.require_ours(self.destination, "engine-native directory", artifact_manifest.written_files, ModelError)


def _convert(job: _Job, start: float) -> Conversion:
    destination, statistics = job.destination, job.spec.statistics
    wait = f"{destination}: another process writes it; waiting"
    with atomic.locked(destination, waiting=lambda: get_logger(__name__).warning(wait)):
        existing = _existing(job)
        if existing is not None:
            return _report(existing, destination, start, reused=True)
        manifest, changes = _write(job)
    few = {} if statistics is None else dict(statistics.few_rows)
    return replace(_report(manifest, destination, start, reused=False), rounded_again=changes, few_rows=few)


def known_recipe(destination: Path, lookup: FormatLookup, key: Callable[[Recipe], str]) -> Recipe | None:
    """Return the recipe of a conversion in ``destination``, complete or interrupted.

    key: returns the key of a conversion with a given recipe; a conversion with another key (other source or version)
    is ignored.
    """
    destination = destination.absolute()
    with contextlib.suppress(InfengError):
        found = recipes.read(destination / recipes.NAME)
        if artifact_manifest.read_manifest(destination, lookup).key == key(found):
            return found
    with contextlib.suppress(InfengError):
        found = recipes.read(atomic.partial_of(destination) / recipes.NAME)
        if atomic.interrupted(destination) == key(found):
            return found
    return None


def _report(manifest: artifact_manifest.Manifest, path: Path, start: float, *, reused: bool) -> Conversion:
    formats = {name: entry.format for name, entry in manifest.tensors.items()}
    nbytes = sum(entry.panels * entry.panel_bytes for entry in manifest.tensors.values())
    nbytes += sum(padded_bytes(entry.size) for entry in manifest.vectors.values())
    return Conversion(path, manifest.id, nbytes, time.monotonic() - start, formats, dict(manifest.quantizer), reused)


def _existing(job: _Job) -> artifact_manifest.Manifest | None:
    """Return the manifest of a destination with the wanted conversion; raise ModelError if it must not be replaced."""
    if _is_free(job.destination):
        return None
    with contextlib.suppress(ModelError):
        manifest = artifact_manifest.read_manifest(job.destination, job.spec.lookup)
        if manifest.key == job.key and not job.force:
            return manifest
    job.require_ours()
    require_free(job.destination, job.force)
    return None


def require_free(destination: Path, force: bool) -> None:
    """Raise ModelError if the destination exists and ``force`` is not set."""
    if not force and not _is_free(destination):
        remedy = "give --force to replace it, or choose another destination"
        raise ModelError(f"{destination}", "exists already", remedy)


def require_original(source: Path) -> None:
    """Raise ModelError for an engine-native directory, which cannot be converted again."""
    if artifact_manifest.is_native(source):
        raise ModelError(f"{source}", "is converted already", "convert the original Hugging Face directory")


def require_place(destination: Path) -> None:
    """Raise an InfengError if a destination cannot be written, before the work begins."""
    destination = destination.absolute()
    atomic.require_name(destination)
    if not _is_free(destination):
        atomic.require_ours(destination, "engine-native directory", artifact_manifest.written_files, ModelError)
    place = next(path for path in destination.parents if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ResourceError(f"{destination}", f"{place} cannot be written to", "choose another destination")


def _is_free(destination: Path) -> bool:
    return not destination.exists() or (destination.is_dir() and not any(destination.iterdir()))


def _write(job: _Job) -> tuple[artifact_manifest.Manifest, dict[str, str]]:
    """Write everything; return the manifest, and a summary of quantized tensors that are rounded again."""
    checkpoint, sides = job.opened()
    spec, recipe = job.spec, job.spec.recipe_file
    sides |= {recipes.NAME: recipe} if recipe else {}
    formats = checkpoint.formats(spec.choice, spec.lookup)
    quants = {name: spec.lookup(format) for name, format in formats.items()}
    packer = Packer(checkpoint, quants, spec.quantizer, spec.statistics, job.threads)
    with atomic.replacing(job.destination, job.require_ours, job.key if spec.is_calibrated else "") as folder:
        if recipe:
            (folder / recipes.NAME).write_bytes(recipe)  # first: it took long to find, and resuming needs it
        places = _write_weights(job, packer, folder)
        files = {}
        for name, data in sides.items():
            (folder / name).write_bytes(data)
            files[name] = hashlib.sha256(data).hexdigest()
        manifest = artifact_manifest.Manifest(
            model=checkpoint.config,
            key=job.key,
            files=files,
            weights=tuple(dict.fromkeys(file for file, _ in places.values())),
            tensors={
                one.name: artifact_manifest.TensorEntry(
                    formats[one.name], one.n, one.k, one.panels, packer.panel_bytes(one), *places[one.name]
                )
                for one in checkpoint.layout.tensors
            },
            vectors={
                one.name: artifact_manifest.VectorEntry(one.size, *places[one.name])
                for one in checkpoint.layout.vectors
            },
            quantizer=spec.quantizer.record,
            plugins={
                name: brought for name in sorted({*formats.values()}) if (brought := brought_by(spec.lookup, name))
            },
        )
        write_manifest(manifest, folder / artifact_manifest.MANIFEST)
    return manifest, checkpoint.changes(formats)


def _write_weights(job: _Job, packer: Packer, folder: Path) -> dict[str, tuple[str, str]]:
    """Write the files of weights; return (file, sha256) of each tensor and vector."""
    shards = plan_shards(packer.entries())
    total = sum(entry.nbytes for shard in shards.values() for entry in shard)
    free = shutil.disk_usage(folder).free + held(folder, shards)
    if total > free:
        why = f"the conversion needs {gigabytes(total)}, the disk has {gigabytes(free)} free"
        raise ResourceError(f"{job.destination}", why, "free some space or choose another place")
    places: dict[str, tuple[str, str]] = {}
    with Progress(total, "converting", job.progress) as shown:

        def fill(entry: Entry) -> NDArray[np.uint8]:
            shown.update(entry.nbytes)
            return packer.fill(entry)

        def take(entry: Entry, data: NDArray[np.uint8]) -> None:
            shown.update(entry.nbytes)
            packer.take(entry, data)

        journal = Journal(folder, packer.place, take) if job.spec.is_calibrated else None
        for file, entries in shards.items():
            digests = write_shard(folder / file, entries, fill, journal)
            places |= {name: (file, digest) for name, digest in digests.items()}
    return places
