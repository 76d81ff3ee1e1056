"""The engine-native adapter: a directory with one safetensors file, whose bytes are used as they are. See
docs/format.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import AdapterError, InfengError
from infeng_core.files import parse_json
from infeng_core.formats.adapters.bounds import MAX_INVOCATION, MAX_RANK
from infeng_core.formats.adapters.image import AdapterImage, Pieces, rotation_of
from infeng_core.formats.adapters.packed import AdapterDtype, PackedAdapter
from infeng_core.formats.adapters.readers import AdapterReader
from infeng_core.formats.adapters.snapshot import Snapshot, read_settled
from infeng_core.formats.adapters.spec import A_FORMAT, AdapterSpec, PartSpec, rank_multiple
from infeng_core.formats.adapters.target_modules import EMBED, HEAD, base_tensor, target_modules
from infeng_core.formats.providers import CORE, Providers
from infeng_core.formats.rotation import LARGEST, SIZE
from infeng_core.formats.safetensors import Header
from infeng_core.formats.tensors import LoadedModel
from infeng_core.models.config import ModelConfig
from infeng_core.models.own_fields import written_own
from infeng_core.models.typed_fields import Fields, show
from infeng_core.plug.hookspecs import ADAPTER_READERS

FILE = "infeng_adapter.safetensors"
MAJOR = 2
VERSION = (MAJOR, 1)  # of the format that is written
FIRST = "first_version"
"""The adapter reader for artifacts in version 1, which are laid out otherwise."""

SMALL = 1 << 20
"""Bytes of an adapter that is read and placed in about a millisecond."""

MAX_SCALING = 1e12  # alpha is at most 1e6 in an adapter_config.json
AGAIN = "convert the adapter again: infeng convert-adapter PEFT DEST --model MODEL --force"
SHAPE_FIELDS = (
    "family",
    "hidden",
    "intermediate",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "tie_embeddings",
)


@dataclass(frozen=True)
class Artifact:
    """The header of an artifact."""

    spec: AdapterSpec
    digest: str  # of the data
    shapes: Mapping[str, object]  # of the base
    base: str  # its id
    base_name: str
    major: int = MAJOR  # the version of the file's format

    @property
    def id(self) -> str:
        """The sha256 over everything that affects the output: equal for equal contents over the same base."""
        content: list[object] = [self.spec.to_dict(), self.digest, dict(self.shapes), self.base]
        content += [self.major] if self.major > 1 else []
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_artifact(directory: Path) -> bool:
    """Return whether a directory holds an engine-native adapter."""
    return (directory / FILE).exists()


def is_small(source: str) -> bool:
    """Return whether a folder holds an engine-native adapter of at most ``SMALL`` bytes."""
    try:
        return os.lstat(Path(source) / FILE).st_size <= SMALL
    except (OSError, ValueError):  # no such file, or an invalid name
        return False


def shapes_of(config: ModelConfig) -> dict[str, object]:
    """Return the sizes that two bases must share for an adapter to fit both."""
    own = written_own(config.family, config.own)
    return {name: getattr(config, name) for name in SHAPE_FIELDS} | ({"own": own} if own else {})


def read_artifact(directory: Path) -> Artifact:
    """Read and check the header of an artifact; raises AdapterError."""
    return read_settled(directory, lambda files: _read_header(files, directory / FILE)[0])


def _read_header(files: Snapshot, path: Path) -> tuple[Artifact, Header]:
    found = files.header(path)
    metadata = Fields(found.metadata, path, remedy=AGAIN)
    major = 1 if metadata.text("infeng_adapter").startswith("1.") else MAJOR
    metadata.version("infeng_adapter", major, AGAIN)
    try:
        document = parse_json(metadata.text("adapter").encode())
    except ValueError as error:
        metadata.fail("adapter", f"is not valid JSON ({error})")
    fields = Fields(document, path, remedy=AGAIN)
    artifact = replace(_parse(fields), major=major)
    if major == 1 and artifact.spec.dtype == "int8t4":
        fields.fail("dtype", "is 'int8t4', which version 1 does not have")
    if fields.text("id") != artifact.id:
        fields.fail("id", "does not match the contents: the file was changed or damaged")
    return artifact, found


def load_artifact(
    directory: Path, model: LoadedModel, dtype: AdapterDtype, scale: float, providers: Providers = CORE
) -> PackedAdapter:
    """Load an artifact over ``model``; raises AdapterError if it is damaged or does not fit.

    providers: with the reader of the format's version 1, for artifacts in it.
    """
    artifact, pieces, data = read_pieces(directory, model, dtype, scale)
    if artifact.major == 1:
        return _reader_of_first(directory, providers).load(directory, model, dtype, scale, 0)
    image = AdapterImage(artifact.spec.scaled(scale), pieces, data, artifact.digest, artifact.base_name)
    return image.adapter(model, directory)


def _reader_of_first(directory: Path, providers: Providers) -> AdapterReader:
    try:
        return providers.get(ADAPTER_READERS, FIRST)
    except InfengError as error:
        why, remedy = "is in version 1 of its format", f"{AGAIN}; or {error.remedy}"
        raise AdapterError(f"{directory / FILE}", why, remedy) from None


def read_pieces(
    directory: Path, model: LoadedModel, dtype: AdapterDtype, scale: float
) -> tuple[Artifact, Pieces, NDArray[np.uint8]]:
    """Return an artifact with its pieces and bytes, in the layout of its version.

    Raises AdapterError if it is damaged or does not fit the model, the storage or the scale.
    """
    path = directory / FILE

    def read(files: Snapshot) -> tuple[Artifact, Pieces, NDArray[np.uint8], str]:
        artifact, found = _read_header(files, path)
        _check_fit(artifact, path, model, dtype, scale)
        pieces = _check_pieces(artifact, found, path, model)
        return artifact, pieces, *files.digested(path, found.data_begin, pieces.total)

    artifact, pieces, data, digest = read_settled(directory, read)
    if digest != artifact.digest:
        raise AdapterError(f"{path}", "does not match its checksum: it was changed or damaged", AGAIN)
    return artifact, pieces, data


def _parse(fields: Fields) -> Artifact:
    dtype = fields.text("dtype")
    if dtype not in A_FORMAT:
        fields.fail("dtype", f"is {show(dtype)}, known are {', '.join(A_FORMAT)}")
    tensors, saved, shapes = fields.mapping("tensors"), fields.mapping("saved_tensors"), fields.mapping("shapes")
    embedding = fields.data.get("embedding")
    vectors = fields.data.get("saved_vectors")
    if not isinstance(vectors, list) or not all(isinstance(name, str) for name in vectors):
        fields.fail("saved_vectors", f"is {show(vectors)}, it must be a list of names")
    spec = AdapterSpec(
        dtype=dtype,  # type: ignore[arg-type]
        tensors={name: _parts(tensors, name, parts) for name, parts in tensors.data.items()},
        embedding=None if embedding is None else _part(fields, "embedding", embedding),
        saved_tensors={name: saved.text(name) for name in saved.data},
        saved_vectors=tuple(vectors),
        rotated=_rotated(fields, tensors),
        invocation=_invocation(fields),
        trained_tokens=_trained_tokens(fields),
    )
    multiple = rank_multiple(spec.dtype)
    if bad := next((part.rank for part in spec.parts() if part.rank % multiple), 0):
        fields.fail("tensors", f"hold a rank of {bad}, with {dtype} it must be a multiple of {multiple}")
    digest, base = fields.text("digest"), fields.text("base")
    return Artifact(spec, digest, dict(shapes.data), base, fields.text("base_name", "") or "")


def _rotated(fields: Fields, tensors: Fields) -> dict[str, int]:
    found = fields.data.get("rotated", [])
    is_list = isinstance(found, list) and all(isinstance(name, str) for name in found)
    blocks = dict.fromkeys(found, SIZE) if is_list else found
    if (
        not isinstance(blocks, dict)
        or not all(name in tensors.data for name in blocks)
        or not all(block in (SIZE, 2 * SIZE, LARGEST) for block in blocks.values())
    ):
        fields.fail("rotated", f"is {show(found)}, it must be a list of its tensors, or their blocks of 64, 128 or 256")
    return dict(blocks)


def _invocation(fields: Fields) -> tuple[int, ...]:
    found = fields.integers("invocation", 0, 1 << 30)
    if len(found) > MAX_INVOCATION:
        fields.fail("invocation", f"has {len(found)} tokens, it may have {MAX_INVOCATION}")
    return found


def _trained_tokens(fields: Fields) -> tuple[int, ...]:
    found = fields.integers("trained_tokens", 0, 1 << 30)
    if len(found) > 2 * MAX_RANK:  # of embeddings and of the head
        fields.fail("trained_tokens", f"has {len(found)} tokens, it may have {2 * MAX_RANK}")
    return found


def _parts(fields: Fields, name: str, parts: object) -> tuple[PartSpec, ...]:
    if not isinstance(parts, list) or not 1 <= len(parts) <= 16:
        fields.fail(name, f"is {show(parts)}, it must be a list of parts")
    return tuple(_part(fields, name, part) for part in parts)


def _part(fields: Fields, name: str, part: object) -> PartSpec:
    if not isinstance(part, list) or len(part) != 4:
        fields.fail(show(name), f"holds {show(part)}, it must be rank, scaling and two flags")
    rank, scaling, row_scale, bias = part
    ranked = type(rank) is int and 0 <= rank <= MAX_RANK
    scaled = type(scaling) in (int, float) and abs(scaling) <= MAX_SCALING
    if not ranked or not scaled or {type(row_scale), type(bias)} != {bool}:
        fields.fail(show(name), f"holds {show(part)}, it must be rank, scaling and two flags")
    return PartSpec(rank, float(scaling), row_scale, bias)


def _check_fit(artifact: Artifact, path: Path, model: LoadedModel, dtype: AdapterDtype, scale: float) -> None:
    """Raise AdapterError if the artifact is for another base, storage or scale."""
    spec, mine = artifact.spec, shapes_of(model.config)
    named = f" ({show(artifact.base_name)})" if artifact.base_name else ""
    for name in (*SHAPE_FIELDS, "own"):
        if artifact.shapes.get(name) != mine.get(name):
            why = f"its base{named} has {name} = {show(artifact.shapes.get(name))}, this one has {mine.get(name)}"
            raise AdapterError(f"{path}", why, "load it over the model that it was trained on")
    if (token := max(spec.invocation, default=0)) >= model.config.vocab:
        why = f"its invocation has token {token}, the base has {model.config.vocab} tokens"
        raise AdapterError(f"{path}", why, "load it over the model that it was trained on")
    if spec.is_bound and artifact.base != model.id:
        why = f"it holds what was computed from another base or another format of it{named}"
        raise AdapterError(f"{path}", why, f"{AGAIN}, with this model and format")
    if spec.dtype != dtype:
        why = f"is stored as {spec.dtype}, this engine's adapters are {dtype}"
        raise AdapterError(
            f"{path}", why, f"set adapters.dtype to {spec.dtype}, or convert it again with --dtype {dtype}"
        )
    if scale != 1.0 and spec.fixed_scale:
        raise AdapterError(
            f"{path}", f"cannot be scaled by {scale}: it was packed with a scale", "load the PEFT directory"
        )


def _check_pieces(artifact: Artifact, found: Header, path: Path, model: LoadedModel) -> Pieces:
    """Return the pieces of the spec over the model; raises if the file has other names or sizes."""
    spec, known = artifact.spec, target_modules(model.config)
    fields = Fields({}, path, remedy=AGAIN)
    for name, parts in spec.tensors.items():
        if name == EMBED or name not in known.specs or len(parts) != len(known.specs[name].parts):
            fields.fail(show(name), "is no tensor of the base, or has other parts there")
        if (block := spec.rotated.get(name, 0)) != rotation_of(model, name, spec.dtype):
            inputs = f"rotated in blocks of {block}" if block else "not rotated"
            why = f"{show(name)} was packed for a base whose inputs are {inputs}"
            raise AdapterError(f"{path}", why, f"{AGAIN}, with this model and format")
    for name, format in spec.saved_tensors.items():
        if name not in (EMBED, HEAD) or format != base_tensor(model, name).format:
            fields.fail(show(name), f"is saved as {show(format)}, which the base's is not")
    norms = {vector for vector, _ in known.norms.values()}
    if not set(spec.saved_vectors) <= norms or len(set(spec.saved_vectors)) != len(spec.saved_vectors):
        fields.fail("saved_vectors", "names what is no norm of the base")
    if spec.embedding is not None and not spec.embedding.rank:
        fields.fail("embedding", "has no rank")
    pieces = Pieces(spec, model, is_first=artifact.major == 1)
    position = found.data_begin
    for name, nbytes in pieces.nbytes.items():
        info = found.tensors.get(name)
        if info is None or (info.dtype, info.begin, info.nbytes) != ("U8", position, nbytes) or position % 64:
            fields.fail(show(name), f"is not the {nbytes} bytes from {position} on that it must be")
        position += nbytes
    if len(found.tensors) != len(pieces.nbytes):
        fields.fail("the file", "holds tensors that its header does not describe")
    return pieces
