"""From a Hugging Face directory or a GGUF to an engine-native one."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import InfengError, ModelError, ResourceError
from infeng_core.files import reading
from infeng_core.formats import atomic, native, recipes
from infeng_core.formats.checkpoints import Checkpoint, open_checkpoint
from infeng_core.formats.choice import FormatChoice
from infeng_core.formats.identity import conversion_key
from infeng_core.formats.packing import chosen_bytes, gather_vector, pack_tensor, statistic_bytes
from infeng_core.formats.progress import Progress, Show
from infeng_core.formats.quant import FormatLookup, QuantFormat, builtin_format
from infeng_core.formats.quantizers import DEFAULT, Moments, QuantizerChoice
from infeng_core.formats.recipes import Recipe
from infeng_core.formats.resume import Journal, held
from infeng_core.formats.shards import ALIGN, Entry, aligned_bytes, plan_shards, write_shard
from infeng_core.formats.tensors import PackedTensor
from infeng_core.log import get_logger
from infeng_core.machine import memory
from infeng_core.models.weights import TensorSpec, VectorSpec


class Statistics(Protocol):
    """What tells a quantizer about the inputs of each matrix (``infeng_core.calibration``)."""

    few_rows: dict[str, int]
    """How many experts of a tensor got so few rows that these say too little of them."""

    def begin(self, checkpoint: Checkpoint) -> None:
        """Start over, for this model."""

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Take a vector of the model; all of them come before the first tensor."""

    def of(self, tensor: str, format: QuantFormat) -> Moments:
        """Return what says of the rows that each part of a packed tensor multiplies, None where it is not known.

        X is what its kernels read: floats, or int8 rows in the groups of ``format``, rotated where it is.
        """

    def put(self, tensor: PackedTensor) -> None:
        """Take a tensor as it will be served; its memory changes afterwards."""


@dataclass(frozen=True)
class Conversion:
    """What a conversion made. ``reused``: it was there already, from the same source, formats and quantizer."""

    path: Path
    id: str
    nbytes: int  # of packed tensors and vectors
    seconds: float
    formats: Mapping[str, str]
    quantizer: Mapping[str, Any]  # as in the manifest: name, and of a plugin's its plugin, version and settings
    reused: bool
    rounded_again: Mapping[str, str] = field(default_factory=dict)  # "Q4_K -> int8-row": "24 tensors"; of a reuse none
    few_rows: Mapping[str, int] = field(default_factory=dict)  # experts of a tensor that text hardly reached; the same


def convert(
    source: Path,
    destination: Path,
    choice: FormatChoice,
    *,
    lookup: FormatLookup = builtin_format,
    quantizer: QuantizerChoice = DEFAULT,
    statistics: Statistics | None = None,
    recipe: bytes = b"",
    force: bool = False,
    threads: int = 2,
    progress: Show = True,
) -> Conversion:
    """Pack ``source``, a Hugging Face directory or a GGUF file, into the engine-native directory ``destination``.

    The destination appears complete or not at all: work goes to a temporary name beside it. A second process that
    wants the same waits and takes the first one's result. An existing engine-native directory of another origin is
    replaced only with ``force``; anything else that exists is left alone. About one tensor is in memory at a time.
    ``quantizer`` chooses what integer formats store, told by ``statistics``, which its settings name; what Ctrl-C or a
    kill leaves of such a conversion the next one with the same arguments continues. ``recipe`` is the file that says
    the same as the arguments, to be kept with what is made. ``progress`` shows a bar where stderr is a terminal. Raises
    ModelError for a bad source, ResourceError for a full disk, PluginError for a quantizer that answers wrongly,
    UsageError for one that has nothing to choose.
    """
    start = time.monotonic()
    if native.is_native(source):
        raise ModelError(f"{source}", "is converted already", "convert the original Hugging Face directory")
    destination = destination.absolute()
    key = conversion_key(source, choice, quantizer, recipe)

    def opened() -> tuple[Checkpoint, dict[str, bytes]]:
        with reading(source):
            checkpoint = open_checkpoint(source)
            return checkpoint, checkpoint.side_files()

    return _convert(
        opened, destination, choice, quantizer, statistics, recipe, key, lookup, threads, progress, force, start
    )


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
    """Do as ``convert`` with a model whose values may come from anywhere; ``key`` says what they are."""
    return _convert(
        lambda: (checkpoint, checkpoint.side_files()),
        destination.absolute(),
        choice,
        DEFAULT,
        None,
        b"",
        key,
        lookup,
        threads,
        progress,
        force=False,
        start=time.monotonic(),
    )


Opened = Callable[[], tuple[Checkpoint, dict[str, bytes]]]
"""Returns a model and the files that stay beside its weights."""


def _convert(
    opened: Opened,
    destination: Path,
    choice: FormatChoice,
    quantizer: QuantizerChoice,
    statistics: Statistics | None,
    recipe: bytes,
    key: str,
    lookup: FormatLookup,
    threads: int,
    progress: Show,
    force: bool,
    start: float,
) -> Conversion:
    ours = partial(atomic.require_ours, destination, "engine-native directory", native.written_files, ModelError)
    wait = f"{destination}: another process writes it; waiting"
    with atomic.locked(destination, waiting=lambda: get_logger(__name__).warning(wait)):
        existing = _existing(destination, key, lookup, force, ours)
        if existing is not None:
            return _report(existing, destination, start, reused=True)
        manifest, changes = _write(
            opened, destination, choice, quantizer, statistics, recipe, key, lookup, threads, progress, ours
        )
    few = {} if statistics is None else dict(statistics.few_rows)
    return replace(_report(manifest, destination, start, reused=False), rounded_again=changes, few_rows=few)


def known_recipe(destination: Path, lookup: FormatLookup, key: Callable[[Recipe], str]) -> Recipe | None:
    """Return the recipe of a conversion that ``destination`` holds, or that was interrupted on its way there.

    key: the key that a conversion with a recipe has; one of another source or version is none.
    """
    destination = destination.absolute()
    with contextlib.suppress(InfengError):
        found = recipes.read(destination / recipes.NAME)
        if native.read_manifest(destination, lookup).key == key(found):
            return found
    with contextlib.suppress(InfengError):
        found = recipes.read(atomic.partial_of(destination) / recipes.NAME)
        if atomic.interrupted(destination) == key(found):
            return found
    return None


def _report(manifest: native.Manifest, path: Path, start: float, *, reused: bool) -> Conversion:
    formats = {name: entry.format for name, entry in manifest.tensors.items()}
    nbytes = sum(entry.panels * entry.panel_bytes for entry in manifest.tensors.values())
    nbytes += sum(_padded(entry.size) for entry in manifest.vectors.values())
    return Conversion(path, manifest.id, nbytes, time.monotonic() - start, formats, dict(manifest.quantizer), reused)


def _existing(
    destination: Path, key: str, lookup: FormatLookup, force: bool, ours: Callable[[], None]
) -> native.Manifest | None:
    """Return the manifest of a destination that is what is wanted; raise ModelError if it must not be touched."""
    if _is_free(destination):
        return None
    with contextlib.suppress(ModelError):
        manifest = native.read_manifest(destination, lookup)
        if manifest.key == key and not force:
            return manifest
    ours()
    require_free(destination, force)
    return None


def require_free(destination: Path, force: bool) -> None:
    """Raise ModelError where something is at a destination that was not asked to be replaced."""
    if not force and not _is_free(destination):
        remedy = "give --force to replace it, or choose another destination"
        raise ModelError(f"{destination}", "exists already", remedy)


def _is_free(destination: Path) -> bool:
    return not destination.exists() or (destination.is_dir() and not any(destination.iterdir()))


def _write(
    opened: Opened,
    destination: Path,
    choice: FormatChoice,
    quantizer: QuantizerChoice,
    statistics: Statistics | None,
    recipe: bytes,
    key: str,
    lookup: FormatLookup,
    threads: int,
    progress: Show,
    ours: Callable[[], None],
) -> tuple[native.Manifest, dict[str, str]]:
    """Write everything; return the manifest, and what was quantized and is rounded again."""
    checkpoint, sides = opened()
    sides |= {recipes.NAME: recipe} if recipe else {}
    formats = checkpoint.formats(choice, lookup)
    quants = {name: lookup(format) for name, format in formats.items()}
    packer = _Packer(checkpoint, quants, quantizer, statistics, threads)
    shards = plan_shards(packer.entries())
    total = sum(entry.nbytes for shard in shards.values() for entry in shard)
    with atomic.replacing(destination, ours, key if statistics is not None else "") as folder:
        if recipe:
            (folder / recipes.NAME).write_bytes(recipe)  # first: it took long to find, and may be looked for
        free = shutil.disk_usage(folder).free + held(folder, shards)
        if total > free:
            why = f"the conversion needs {memory.gigabytes(total)}, the disk has {memory.gigabytes(free)} free"
            raise ResourceError(f"{destination}", why, "free some space or choose another place")
        place: dict[str, tuple[str, str]] = {}  # tensor: (file, sha256)
        with Progress(total, "converting", progress) as shown:

            def fill(entry: Entry) -> NDArray[np.uint8]:
                shown.update(entry.nbytes)
                return packer.fill(entry)

            def take(entry: Entry, data: NDArray[np.uint8]) -> None:
                shown.update(entry.nbytes)
                packer.take(entry, data)

            journal = Journal(folder, packer.place, take) if statistics is not None else None
            for file, entries in shards.items():
                digests = write_shard(folder / file, entries, fill, journal)
                place |= {name: (file, digest) for name, digest in digests.items()}
        files = {}
        for name, data in sides.items():
            (folder / name).write_bytes(data)
            files[name] = hashlib.sha256(data).hexdigest()
        manifest = native.Manifest(
            model=checkpoint.config,
            key=key,
            files=files,
            weights=tuple(shards),
            tensors={
                spec.name: native.TensorEntry(
                    formats[spec.name], spec.n, spec.k, spec.panels, packer.panel_bytes(spec), *place[spec.name]
                )
                for spec in checkpoint.layout.tensors
            },
            vectors={spec.name: native.VectorEntry(spec.size, *place[spec.name]) for spec in checkpoint.layout.vectors},
            quantizer=quantizer.record,
        )
        native.write_manifest(manifest, folder / native.MANIFEST)
    return manifest, checkpoint.changes(formats)


class _Packer:
    """Makes the bytes of one tensor after another in one buffer, as large as the largest of them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        formats: Mapping[str, QuantFormat],
        quantizer: QuantizerChoice,
        statistics: Statistics | None,
        threads: int,
    ) -> None:
        quantizer.require_use(formats, is_calibrated=statistics is not None)
        if statistics is not None:
            statistics.begin(checkpoint)
        self.checkpoint = checkpoint
        self.formats = formats
        self.quantizer = quantizer
        self.statistics = statistics
        self.threads = threads
        self.specs: dict[str, TensorSpec | VectorSpec] = {spec.name: spec for spec in checkpoint.layout.vectors}
        self.specs |= {spec.name: spec for spec in checkpoint.layout.tensors}
        largest = max(entry.nbytes for entry in self.entries())
        chosen = max(chosen_bytes(spec, formats[spec.name], quantizer) for spec in checkpoint.layout.tensors)
        chosen += statistic_bytes(checkpoint.layout) if statistics is not None else 0
        memory.require(largest + checkpoint.largest + chosen, f"{checkpoint.directory}", memory.available_bytes())
        self.buffer = aligned_bytes(largest)

    def panel_bytes(self, spec: TensorSpec) -> int:
        return self.formats[spec.name].panel_bytes(spec.k)

    def entries(self) -> list[Entry]:
        """Return what is written, in order: vectors, then tensors as a step reads them."""
        found = []
        for name, spec in self.specs.items():
            if isinstance(spec, TensorSpec):
                shape: tuple[int, ...] = (spec.panels, self.panel_bytes(spec))
                found.append(Entry(name, "U8", shape, shape[0] * shape[1]))
            else:
                found.append(Entry(name, "F32", (_padded(spec.size) // 4,), _padded(spec.size)))
        return found

    def place(self, entry: Entry) -> NDArray[np.uint8]:
        """Return memory for one entry, a view of the buffer."""
        return self.buffer[: entry.nbytes]

    def take(self, entry: Entry, data: NDArray[np.uint8]) -> None:
        """Take the bytes of an entry that was made before, as if they had been made now."""
        spec = self.specs[entry.name]
        if self.statistics is None:
            return
        if isinstance(spec, TensorSpec):
            self.statistics.put(self._packed(spec, data))
        else:
            self.statistics.vector(spec.name, data.view(np.float32)[: spec.size])

    def fill(self, entry: Entry) -> NDArray[np.uint8]:
        """Return the bytes of one entry, a view of the buffer."""
        spec, out = self.specs[entry.name], self.place(entry)
        if isinstance(spec, TensorSpec):
            self._pack(spec, out)
        else:
            values = gather_vector(spec, self.checkpoint)
            if self.statistics is not None:
                self.statistics.vector(spec.name, values)
            out[:] = 0
            out[: spec.size * 4] = values.view(np.uint8)
        return out

    def _pack(self, spec: TensorSpec, out: NDArray[np.uint8]) -> None:
        format = self.formats[spec.name]
        if self.statistics is None:
            pack_tensor(spec, self.checkpoint, format, out, self.threads, self.quantizer)
            return
        told = self.statistics.of(spec.name, format)
        pack_tensor(spec, self.checkpoint, format, out, self.threads, self.quantizer, told)
        self.statistics.put(self._packed(spec, out))

    def _packed(self, spec: TensorSpec, data: NDArray[np.uint8]) -> PackedTensor:
        format = self.formats[spec.name]
        return PackedTensor(
            spec.name, format.name, spec.n, spec.k, spec.panels, self.panel_bytes(spec), data, 0, format
        )


def _padded(size: int) -> int:
    """Return the bytes that a vector of ``size`` float32 takes in the file."""
    return -(-size * 4 // ALIGN) * ALIGN
