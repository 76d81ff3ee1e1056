"""What a file or directory is, and what a model in it would need, without reading its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from infeng_core.errors import InfengError, ModelError
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.adapters.readers import recognizing as recognizing_adapter
from infeng_core.formats.artifacts.manifest import is_native, read_manifest
from infeng_core.formats.checkpoints import BUILTIN as BUILTIN_READERS
from infeng_core.formats.checkpoints import has_template, tokenizer_bytes
from infeng_core.formats.format_choice import FormatChoice, by_format
from infeng_core.formats.model_readers import ModelReader
from infeng_core.formats.providers import CORE, Providers, recognizing
from infeng_core.formats.quant import BUILTIN, FormatLookup
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.weights import Layout, layout

MAX_FOUND = 1000


@dataclass(frozen=True)
class Survey:
    """One model or adapter. What is not known is empty; ``why_not`` says why it cannot be run, "" where it can."""

    path: Path
    kind: str  # a reader's, such as "Hugging Face"; "engine-native", "adapter", or "" where nothing reads it
    config: ModelConfig | None = None
    parameters: int = 0
    active_parameters: int = 0  # that a token is computed with: of experts, those that it goes to
    stored: Mapping[str, int] = field(default_factory=dict)  # tensors by type, as the file names types
    format_of: Mapping[str, str] = field(default_factory=dict)  # by tensor: in which it would be run
    rounded_again: Mapping[str, str] = field(default_factory=dict)  # "Q4_K -> int8-row": "24 tensors"
    weight_bytes: int = 0  # in those formats
    tokenizer_bytes: int = 0  # of its file; 0: it has none
    has_template: bool = False
    method: str = ""  # by which others quantized a Hugging Face directory: "GPTQ"
    why_not: str = ""

    @property
    def has_tokenizer(self) -> bool:
        """Whether texts can be given and not token ids alone."""
        return self.tokenizer_bytes > 0

    @property
    def formats(self) -> dict[str, list[str]]:
        """Tensors by their format, one of all layers as ``layers.*.down_proj``."""
        return by_format(self.format_of)


def readable(plugins: Providers = CORE) -> dict[str, Any]:
    """Return what can be run: families with their classes, what each reader of a plugin supports, weight formats."""
    others = {name: reader.supports() for name, reader in plugins.model_readers() if name not in BUILTIN_READERS}
    return {
        "families": {name: list(family.ARCHITECTURES) for name, family in families().items()},
        **BUILTIN_READERS["huggingface"].supports(),
        **others,
        "formats": list(BUILTIN),
        "readers": sorted([*others, *plugins.sources()]),
    }


def models_below(path: Path, plugins: Providers = CORE) -> Iterator[Path]:
    """Yield ``path`` itself where it is a model or an adapter or holds none, else those in it and in its folders.

    Of a model in several files that have a name of their own the first stands for all.
    """
    if not path.is_dir() or _kind(path, plugins):
        yield path
        return
    is_one = partial(_is_one, plugins=plugins)
    found = 0
    for child in sorted(path.iterdir()):
        inside = [child] if is_one(child) else sorted(filter(is_one, child.iterdir())) if child.is_dir() else []
        for one in inside:
            found += 1
            if found > MAX_FOUND:
                raise ModelError(f"{path}", f"holds more than {MAX_FOUND} models", "name a folder with fewer")
            yield one
    if not found:
        yield path  # of which is said that it is none


def survey(
    path: Path,
    choice: FormatChoice,
    lookup: FormatLookup,
    *,
    needs_weights: bool = True,
    plugins: Providers = CORE,
) -> Survey:
    """Look at one file or directory; whatever is wrong with it is in the answer.

    Of a Hugging Face directory without readable weights sizes follow from its configuration. needs_weights: whether
    that they are not there is wrong.
    """
    kind = _kind(path, plugins)
    try:
        if kind == "engine-native":
            return _native(path, lookup)
        if kind == "adapter":
            return _adapter(path)
        reader = recognizing(path, plugins)
        if reader is not None:
            return _read(path, reader, choice, lookup, needs_weights)
        return Survey(path, "", why_not=plugins.missing_wheel(str(path)) or _is_none(path, plugins))
    except InfengError as error:
        return Survey(path, kind, why_not=str(error))


def _is_none(path: Path, plugins: Providers) -> str:
    kinds = [reader.kind for name, reader in plugins.model_readers() if name not in BUILTIN_READERS]
    looked_for = f"neither config.json nor a {' or '.join(kinds)} file" if kinds else "no config.json"
    return f"it is no model: {looked_for}{', nor a folder with some' if path.is_dir() else ''}"


def _kind(path: Path, plugins: Providers) -> str:
    if is_native(path):
        return "engine-native"
    try:
        if path.is_dir() and _is_adapter(path, plugins):
            return "adapter"
        reader = recognizing(path, plugins)
        if reader is not None:
            return reader.kind
        return "adapter" if path.is_file() and _is_adapter(path, plugins) else ""
    except ModelError:
        return ""


def _is_adapter(path: Path, plugins: Providers) -> bool:
    return is_artifact(path) or recognizing_adapter(path, plugins.adapter_readers()) is not None


def _is_one(path: Path, plugins: Providers) -> bool:
    kind = _kind(path, plugins)
    reader = recognizing(path, plugins) if kind and path.is_file() else None
    if reader is None:
        return bool(kind)
    try:
        return reader.files(path).weights[0] == path
    except InfengError:
        return True  # of which is said what is wrong with it


def _adapter(path: Path) -> Survey:
    return Survey(path, "adapter", why_not="it is an adapter: give it with --lora NAME=PATH, over its base")


def _read(path: Path, reader: ModelReader, choice: FormatChoice, lookup: FormatLookup, needs_weights: bool) -> Survey:
    described, why_not = reader.describe(path), ""
    config = described.config
    if config is None:
        return _adapter(path)
    stored: Mapping[str, int] = {}
    changes: Mapping[str, str] = {}
    arranged = layout(config)
    formats = {} if described.formats is None else described.formats(choice, lookup)
    try:
        checkpoint = reader.open(path)
        config, arranged, stored = checkpoint.config, checkpoint.layout, checkpoint.stored()
        formats = checkpoint.formats(choice, lookup)
        changes = checkpoint.changes(formats)
    except ModelError as error:
        if not formats:
            raise
        if needs_weights or any(path.glob("*.safetensors")):
            why_not = str(error)
    return Survey(
        path,
        reader.kind,
        config,
        parameters(arranged),
        active_parameters(arranged, config),
        stored,
        formats,
        changes,
        weight_bytes(arranged, formats, lookup),
        tokenizer_bytes=described.tokenizer_bytes,
        has_template=described.has_template,
        method=described.method,
        why_not=why_not,
    )


def _native(path: Path, lookup: FormatLookup) -> Survey:
    manifest = read_manifest(path, lookup)
    formats = {name: entry.format for name, entry in manifest.tensors.items()}
    made = layout(manifest.model)
    return Survey(
        path,
        "engine-native",
        manifest.model,
        parameters(made),
        active_parameters(made, manifest.model),
        dict(Counter(formats.values())),
        formats,
        {},
        weight_bytes(made, formats, lookup),
        tokenizer_bytes=tokenizer_bytes(path),
        has_template=has_template(path),
    )


def parameters(model: Layout) -> int:
    """Return how many numbers a model has learned."""
    matrices = sum(part.rows * spec.k for spec in model.tensors for part in spec.parts)
    return matrices + sum(part.rows for vector in model.vectors for part in vector.parts)


def active_parameters(model: Layout, config: ModelConfig) -> int:
    """Return how many of them a token is computed with."""
    in_experts = sum(part.rows * spec.k for spec in model.tensors if spec.experts for part in spec.parts)
    idle = in_experts * (config.experts - config.experts_per_token) // config.experts if in_experts else 0
    return parameters(model) - idle


def weight_bytes(model: Layout, formats: Mapping[str, str], lookup: FormatLookup) -> int:
    """Return the bytes of all panels and vectors in memory."""
    panels = sum(spec.panels * lookup(formats[spec.name]).panel_bytes(spec.k) for spec in model.tensors)
    return panels + sum(4 * math.ceil(vector.size / 16) * 16 for vector in model.vectors)
