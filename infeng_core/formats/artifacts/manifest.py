"""The manifest of an engine-native directory (docs/format.md): strict reading."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infeng_core import _native, yamltree
from infeng_core.errors import InfengError, ModelError
from infeng_core.files import read_text
from infeng_core.formats.quant import FormatLookup, misfit
from infeng_core.models.config import ModelConfig
from infeng_core.models.typed_fields import Fields, show
from infeng_core.models.weights import layout
from infeng_core.plug.reason import NOBODY
from infeng_core.version import __version__

MANIFEST = "manifest.yaml"
FORMAT_MAJOR, FORMAT_MINOR = 1, 0
MAX_BYTES = 16 << 20
MAX_NODES = 1 << 20  # about 80 for each layer
SHARD_NAME = re.compile(r"weights-\d{5}\.safetensors")
SIDE_FILE_NAME = re.compile(r"[\w.-]{1,100}")
AGAIN = "convert the model again: infeng convert SOURCE DEST --force"

BUILT_IN: Mapping[str, Any] = MappingProxyType({"name": "nearest"})
"""The record of the rounding that every conversion knows, of which a manifest says nothing."""


@dataclass(frozen=True)
class TensorEntry:
    """A packed tensor: its place and the hash of its bytes."""

    format: str
    n: int
    k: int
    panels: int
    panel_bytes: int
    file: str
    sha256: str


@dataclass(frozen=True)
class VectorEntry:
    """A float32 vector of ``size`` values, stored padded with zeros to a multiple of 16."""

    size: int
    file: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The manifest of an engine-native directory. ``key`` identifies the conversion that made it."""

    model: ModelConfig
    key: str
    files: Mapping[str, str]  # config and tokenizer files and their sha256
    weights: tuple[str, ...]  # safetensors files
    tensors: Mapping[str, TensorEntry]
    vectors: Mapping[str, VectorEntry]
    quantizer: Mapping[str, Any] = field(default_factory=lambda: BUILT_IN)  # the record of the quantizer
    plugins: Mapping[str, str] = field(default_factory=dict)  # weight format -> the plugin that brought it, for errors
    numerics: int = _native.NUMERICS
    version: str = f"{FORMAT_MAJOR}.{FORMAT_MINOR}"
    written_by: str = __version__

    @property
    def quantizer_entry(self) -> dict[str, Any]:
        """The quantizer as the file and the id have it: absent for the built-in rounding, as in version 1.0."""
        return {} if self.quantizer == BUILT_IN else {"quantizer": dict(self.quantizer)}

    @property
    def numerics_entry(self) -> dict[str, int]:
        """The revision of the numerics as the file and the id have it: absent for the first, as in version 1.0."""
        return {} if self.numerics == 1 else {"numerics": self.numerics}

    @property
    def id(self) -> str:
        """The sha256 over everything that affects the model's results."""
        parts = {
            "model": self.model.to_dict(),
            "files": dict(self.files),
            "tensors": {name: [t.format, t.n, t.k, t.panels, t.sha256] for name, t in self.tensors.items()},
            "vectors": {name: [v.size, v.sha256] for name, v in self.vectors.items()},
            **self.quantizer_entry,
            **self.numerics_entry,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def is_native(directory: Path) -> bool:
    """Return whether a directory is engine-native."""
    return (directory / MANIFEST).is_file()


def read_manifest(directory: Path, lookup: FormatLookup) -> Manifest:
    """Read and check the manifest of ``directory``; raises ModelError for any invalid content."""
    path = directory / MANIFEST
    return parse_manifest(read_text(path, MAX_BYTES, ModelError, AGAIN), path, lookup)


def written_files(directory: Path) -> set[str]:
    """Return the names of all files of an engine-native directory of any version; raises ModelError for another
    directory."""
    path = directory / MANIFEST
    fields = _document(read_text(path, MAX_BYTES, ModelError, AGAIN), path)
    for key in ("infeng_weights", "id", "key"):
        fields.text(key)
    files = fields.mapping("files")
    return {MANIFEST, *(_side_name(files, name) for name in files.data), *_weights(fields)}


def parse_manifest(text: str, path: Path, lookup: FormatLookup) -> Manifest:
    """Check a manifest's text; ``lookup`` finds weight formats. Raises ModelError."""
    fields = _document(text, path)
    if fields.version("infeng_weights", FORMAT_MAJOR, AGAIN) <= FORMAT_MINOR:
        known = ("model", "files", "weights", "tensors", "vectors", "quantizer", "numerics", "plugins")
        fields.only("infeng_weights", "written_by", "id", "key", *known)
    files = fields.mapping("files")
    weights = _weights(fields)
    tensors, vectors = fields.mapping("tensors"), fields.mapping("vectors")
    manifest = Manifest(
        model=ModelConfig.from_dict(fields.mapping("model").data, path),
        key=fields.text("key"),
        files={_side_name(files, name): _digest(files, name) for name in files.data},
        weights=tuple(weights),
        tensors={name: _tensor(tensors.mapping(name), weights) for name in tensors.data},
        vectors={name: _vector(vectors.mapping(name), weights) for name in vectors.data},
        quantizer=_quantizer(fields.mapping("quantizer")) if fields.has("quantizer") else BUILT_IN,
        numerics=_numerics(fields),
        plugins=_plugins(fields.mapping("plugins")) if fields.has("plugins") else {},
        version=fields.text("infeng_weights"),
        written_by=fields.text("written_by"),
    )
    _check_layout(manifest, tensors, vectors, lookup)
    if fields.text("id") != manifest.id:
        fields.fail("id", "does not match the contents: the manifest was changed or damaged")
    return manifest


def _document(text: str, path: Path) -> Fields:
    return Fields(yamltree.parse(text, path, ModelError, MAX_NODES, AGAIN)[0], path, remedy=AGAIN)


def _weights(fields: Fields) -> list[str]:
    names = fields.data.get("weights")
    if not isinstance(names, list) or not names or not all(SHARD_NAME.fullmatch(str(name)) for name in names):
        fields.fail("weights", f"is {show(names)}, it must be a list of names such as weights-00001.safetensors")
    return names


def _side_name(files: Fields, name: object) -> str:
    if not isinstance(name, str) or not SIDE_FILE_NAME.fullmatch(name) or name.startswith("."):
        files.fail(show(name), "is not a plain file name")
    return name


def _digest(fields: Fields, key: str) -> str:
    digest = fields.text(key)
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        fields.fail(key, f"is {show(digest)}, it must be a sha256 in hexadecimal")
    return digest


def _file(fields: Fields, weights: list[str]) -> str:
    name = fields.text("file")
    if name not in weights:
        fields.fail("file", f"is {show(name)}, which is not listed under weights")
    return name


def _tensor(fields: Fields, weights: list[str]) -> TensorEntry:
    sizes = {key: fields.integer(key, 1, 1 << 48) for key in ("n", "k", "panels", "panel_bytes")}
    return TensorEntry(fields.text("format"), **sizes, file=_file(fields, weights), sha256=_digest(fields, "sha256"))


def _vector(fields: Fields, weights: list[str]) -> VectorEntry:
    return VectorEntry(fields.integer("size", 1, 1 << 48), _file(fields, weights), _digest(fields, "sha256"))


def _quantizer(fields: Fields) -> Mapping[str, Any]:
    fields.only("name", "plugin", "version", "settings")
    settings = fields.mapping("settings")
    for name, value in settings.data.items():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if not all(one is None or isinstance(one, str | bool | int | float) for one in values):
            settings.fail(show(name), f"is {show(value)}, which is no setting")
    return {key: fields.text(key) for key in ("name", "plugin", "version")} | {"settings": settings.data}


def _plugins(fields: Fields) -> Mapping[str, str]:
    return {name: fields.text(name) for name in fields.data}


def _numerics(fields: Fields) -> int:
    revision = fields.integer("numerics", 1, 1 << 31) if fields.has("numerics") else 1
    if revision != _native.NUMERICS:
        fields.fail("numerics", f"is revision {revision}, this engine computes by revision {_native.NUMERICS}")
    return revision


def _check_layout(manifest: Manifest, tensors: Fields, vectors: Fields, lookup: FormatLookup) -> None:
    """Raise ModelError unless the tensors are exactly the model's, in the expected sizes."""
    expected = layout(manifest.model)
    specs = {spec.name: spec for spec in expected.tensors}
    sizes = {spec.name: spec.size for spec in expected.vectors}
    for fields, found, names in ((tensors, manifest.tensors.keys(), specs), (vectors, manifest.vectors.keys(), sizes)):
        for name in names:
            if name not in found:
                fields.fail(name, "is missing")
        for name in found:
            if name not in names:
                fields.fail(show(name), "is no tensor of this model")
    for name, entry in manifest.tensors.items():
        spec = specs[name]
        if (entry.n, entry.k, entry.panels) != (spec.n, spec.k, spec.panels):
            tensors.fail(name, f"has n, k, panels {entry.n, entry.k, entry.panels}, not {spec.n, spec.k, spec.panels}")
        try:
            format = lookup(entry.format)
            panel_bytes = format.panel_bytes(entry.k)
        except InfengError as error:
            origin = manifest.plugins.get(entry.format) if error.why == NOBODY else None
            remedy = error.remedy if origin is None else f"install the plugin that brought it: {origin}"
            tensors.fail(name, f"has the format {show(entry.format)}, which cannot be used ({error.why})", remedy)
        if why := misfit(name, entry.k, format):
            tensors.fail(name, f"has the format {entry.format}, which it cannot have: {why}")
        if entry.panel_bytes != panel_bytes:
            tensors.fail(name, f"has panel_bytes {entry.panel_bytes}, which is wrong for {entry.format}")
    for name, vector in manifest.vectors.items():
        if vector.size != sizes[name]:
            vectors.fail(name, f"has size {vector.size}, not {sizes[name]}")
