"""Loading an engine-native directory: copied to huge pages and verified, or mapped."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.errors import ModelError, ResourceError
from infeng_core.files import opened, read_bytes, read_into, reading
from infeng_core.formats.artifacts.manifest import AGAIN, Manifest, read_manifest
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.safetensors import Header, TensorInfo, read_header
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.side_files import MAX_SIDE_FILE
from infeng_core.formats.tensors import LoadedModel, PackedTensor, Weights
from infeng_core.machine import memory, placement

CHUNK = 1 << 20  # read, then hashed while it is still in a core's cache


@dataclass(frozen=True)
class _Piece:
    """One tensor of a weight file and its offset in the arena."""

    name: str
    sha256: str
    path: Path
    info: TensorInfo
    target: int


def read_native(
    directory: Path,
    lookup: FormatLookup,
    *,
    load: Literal["copy", "mmap", "stream"] = "copy",
    verify: bool = True,
    threads: int = 2,
    key: str | None = None,
    pages: Callable[[int], _native.Pages] = lambda nbytes: _native.Pages(),
) -> LoadedModel:
    """Load an engine-native directory.

    ``copy`` reads into an arena of huge pages and, with ``verify``, compares every tensor's sha256 on the way;
    ``mmap`` maps the files and reads nothing; ``stream`` does so too, and ``LoadedModel.weights`` then reads one weight
    after the other, as ``copy`` does. With ``key`` it must be the conversion of that key. Raises ModelError
    for anything that contradicts the manifest, ResourceError if memory is too small. pages: returns the placement and
    locking of weights by their bytes; mapped files stay in the system's page cache.
    """
    with reading(directory):
        manifest = read_manifest(directory, lookup)
        if key not in (None, manifest.key):
            raise ModelError(f"{directory}", "is another conversion than its name says", AGAIN)
        _check_side_files(directory, manifest)
        headers = {file: read_header(directory / file) for file in manifest.weights}
        pieces = list(_pieces(directory, manifest, headers))
        nbytes = sum(piece.info.nbytes for piece in pieces)
        if load == "copy":
            arena = _arena(nbytes, directory, pages(nbytes))
            _copy(pieces, arena, verify, threads)
            where: dict[str, tuple[Any, int]] = {piece.name: (arena, piece.target) for piece in pieces}
        else:
            maps = {file: _map(directory / file, header) for file, header in headers.items()}
            if load == "mmap" and pages(nbytes).lock:
                _lock(maps)
            where = {piece.name: (maps[piece.path.name], piece.info.begin) for piece in pieces}
        model = _assemble(directory, manifest, lookup, where, nbytes)
        if load == "copy":
            files = {name: entry.file for name, entry in manifest.tensors.items()}
            files |= {name: entry.file for name, entry in manifest.vectors.items()}
            _check_values(directory, model, files, threads)
        return replace(model, stream=partial(_stream, model, pieces, verify, threads)) if load == "stream" else model


def _arena(nbytes: int, directory: Path, pages: _native.Pages) -> _native.Arena:
    """Return memory for the weights; raises ResourceError before the system runs out of it, or if it refuses."""
    available = memory.available_bytes()
    memory.require(nbytes, f"{directory}", available)
    try:
        arena = _native.Arena(nbytes, pages=pages)
    except (_native.NativeError, MemoryError) as error:
        if getattr(error, "code", "") == "lock_refused":
            raise ResourceError(f"{directory}", str(error), memory.LOCK_REMEDY) from error
        raise memory.memory_shortage(nbytes, f"{directory}", available) from None
    placement.report(arena.place_error)
    return arena


def _lock(maps: Mapping[str, mmap.mmap]) -> None:
    for file, mapped in maps.items():
        try:
            _native.lock_memory(mapped)
        except _native.NativeError as error:
            raise ResourceError(file, str(error), memory.LOCK_REMEDY) from error


def _pieces(directory: Path, manifest: Manifest, headers: dict[str, Header]) -> Iterator[_Piece]:
    """Find every tensor of the manifest in the headers; raises ModelError if the two disagree."""
    expected: dict[str, tuple[str, str, str, tuple[int, ...]]] = {}
    for name, vector in manifest.vectors.items():
        expected[name] = (vector.file, vector.sha256, "F32", (-(-vector.size // 16) * 16,))
    for name, tensor in manifest.tensors.items():
        expected[name] = (tensor.file, tensor.sha256, "U8", (tensor.panels, tensor.panel_bytes))
    target = 0
    for name, (file, sha256, dtype, shape) in expected.items():
        path, info = directory / file, headers[file].tensors.get(name)
        if info is None:
            raise ModelError(f"{path}", f"tensor {name} is missing, the manifest says it is here", AGAIN)
        if (info.dtype, info.shape) != (dtype, shape):
            why = f"tensor {name} is {info.dtype} {info.shape}, the manifest says {dtype} {shape}"
            raise ModelError(f"{path}", why, AGAIN)
        if info.begin % 64 or info.nbytes % 64:
            raise ModelError(f"{path}", f"tensor {name} is not aligned to 64 bytes", AGAIN)
        yield _Piece(name, sha256, path, info, target)
        target += info.nbytes


def _copy(pieces: list[_Piece], arena: _native.Arena, verify: bool, threads: int) -> None:
    """Read all pieces into the arena, the largest first, several at a time; raises ModelError for a wrong hash."""
    view = memoryview(arena).cast("B")
    with ExitStack() as stack:
        handles: dict[Path, int] = {}
        for path in {piece.path for piece in pieces}:
            handles[path] = stack.enter_context(opened(path, ModelError, AGAIN))

        def read(piece: _Piece) -> None:
            _read_piece(piece, handles[piece.path], view, verify)

        pool = stack.enter_context(ThreadPoolExecutor(threads, "infeng-load"))
        # The pool's exit waits for submitted work: an error drops the rest instead of reading on.
        try:
            for _ in pool.map(read, sorted(pieces, key=lambda piece: -piece.info.nbytes)):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _read_piece(piece: _Piece, handle: int, view: memoryview, verify: bool) -> None:
    digest, whole = hashlib.sha256(), view[piece.target : piece.target + piece.info.nbytes]
    for first in range(0, len(whole), CHUNK):
        chunk = whole[first : first + CHUNK]
        read_into(handle, chunk, piece.info.begin + first, piece.path)
        if verify:
            digest.update(chunk)
    if verify and digest.hexdigest() != piece.sha256:
        raise ModelError(f"{piece.path}", f"tensor {piece.name} does not match its checksum", AGAIN)


def _check_values(directory: Path, model: LoadedModel, files: Mapping[str, str], threads: int) -> None:
    """Raise ModelError for weights that no conversion writes, whatever their checksum: kernels might differ on them."""
    for name, weight in model.weights():
        _check_weight(directory / files[name], name, weight, threads)


def _check_weight(path: Path, name: str, weight: PackedTensor | NDArray[np.float32], threads: int) -> None:
    if isinstance(weight, PackedTensor):
        try:
            weight.quant.check(weight.buffer, weight.offset, weight.panels, weight.k, threads=threads)
        except _native.NativeError as error:
            raise ModelError(f"{path}", f"tensor {name} is no {weight.format} ({error})", AGAIN) from None
    elif not np.isfinite(weight).all():
        row = int(np.flatnonzero(~np.isfinite(weight))[0])
        raise ModelError(f"{path}", f"vector {name} holds {weight[row]} at row {row}", AGAIN)


def _stream(model: LoadedModel, pieces: list[_Piece], verify: bool, threads: int) -> Weights:
    """Read, verify and check one weight after the other, in the order of the files; holds none of them."""
    for piece in sorted(pieces, key=lambda piece: (piece.path, piece.info.begin)):
        memory = aligned_bytes(piece.info.nbytes)
        with reading(model.source), opened(piece.path, ModelError, AGAIN) as handle:
            _read_piece(replace(piece, target=0), handle, memory.data, verify)
        packed = model.tensors.get(piece.name)
        weight: PackedTensor | NDArray[np.float32]
        if packed is None:
            weight = memory.view(np.float32)[: len(model.vectors[piece.name])]
        else:
            weight = packed.holding(memory, piece.name)
        _check_weight(piece.path, piece.name, weight, threads)
        del memory
        yield piece.name, weight
        del weight


def _map(path: Path, header: Header) -> mmap.mmap:
    with opened(path, ModelError, AGAIN) as handle:
        mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    if len(mapped) < max(info.begin + info.nbytes for info in header.tensors.values()):
        raise ModelError(f"{path}", "has become shorter since its header was read", AGAIN)
    return mapped


def _check_side_files(directory: Path, manifest: Manifest) -> None:
    for name, sha256 in manifest.files.items():
        data = read_bytes(directory / name, MAX_SIDE_FILE, ModelError, AGAIN)
        if hashlib.sha256(data).hexdigest() != sha256:
            remedy = f"undo the change, or {AGAIN}"
            raise ModelError(f"{directory / name}", "does not match its checksum in the manifest", remedy)


def _assemble(
    directory: Path,
    manifest: Manifest,
    lookup: Callable[[str], Any],
    where: dict[str, tuple[Any, int]],
    nbytes: int,
) -> LoadedModel:
    tensors = {}
    for name, entry in manifest.tensors.items():
        sizes = (entry.n, entry.k, entry.panels, entry.panel_bytes)
        tensors[name] = PackedTensor(name, entry.format, *sizes, *where[name], quant=lookup(entry.format))
    vectors = {}
    for name, vector in manifest.vectors.items():
        buffer, offset = where[name]
        vectors[name] = np.frombuffer(buffer, np.float32, vector.size, offset)
    return LoadedModel(
        config=manifest.model,
        source=directory,
        tensors=tensors,
        vectors=vectors,
        tokenizer_dir=directory,
        formats_used={name: entry.format for name, entry in manifest.tensors.items()},
        nbytes=nbytes,
        id=manifest.id,
        quantizer=str(manifest.quantizer["name"]),
    )
