"""The kind of a file or directory, and the needs of its model, found without reading weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from infeng_inspect.api import by_format

from infeng_convert.checkpoints import BUILTIN as BUILTIN_READERS
from infeng_convert.checkpoints import has_template, tokenizer_bytes
from infeng_convert.interfaces.hooks import MODEL_READERS, SOURCES
from infeng_convert.interfaces.readers import ModelReader
from infeng_convert.providers import OWN as OWN
from infeng_convert.providers import recognizing
from infeng_core.api import InfengError, ModelError
from infeng_core.api.adapters import find_adapter, is_adapter
from infeng_core.api.formats import (
    BUILTIN,
    FormatChoice,
    FormatLookup,
    Layout,
    ModelConfig,
    Providers,
    artifact_manifest,
    families,
    layout,
    locate,
)

MAX_FOUND = 1000


@dataclass(frozen=True)
class Survey:
    """One model or adapter. Unknown values are empty; ``why_not`` says why it cannot be run, "" if it can."""

    path: Path
    kind: str  # a reader's, such as "Hugging Face"; "engine-native", "adapter", or "" without a reader
    config: ModelConfig | None = None
    parameters: int = 0
    active_parameters: int = 0  # used for each token: of the experts, only the chosen ones
    stored: Mapping[str, int] = field(default_factory=dict)  # tensors by type, in the file's names of types
    format_of: Mapping[str, str] = field(default_factory=dict)  # by tensor: the format in which it would run
    rounded_again: Mapping[str, str] = field(default_factory=dict)  # "Q4_K -> int8-row": "24 tensors"
    weight_bytes: int = 0  # in those formats
    tokenizer_bytes: int = 0  # of its file; 0: there is none
    has_template: bool = False
    method: str = ""  # how a Hugging Face directory was quantized: "GPTQ"
    why_not: str = ""

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model accepts texts, not only token ids."""
        return self.tokenizer_bytes > 0

    @property
    def formats(self) -> dict[str, list[str]]:
        """Tensors by format; one with the same format in all layers as ``layers.*.down_proj``."""
        return by_format(self.format_of)


def readable(plugins: Providers = OWN) -> dict[str, Any]:
    """Return the supported models: families with their classes, variants of each reader of a plugin, weight formats."""
    others = {name: reader.supports() for name, reader in plugins.each(MODEL_READERS) if name not in BUILTIN_READERS}
    return {
        "families": {name: list(family.ARCHITECTURES) for name, family in families().items()},
        **BUILTIN_READERS["huggingface"].supports(),
        **others,
        "formats": list(BUILTIN),
        "readers": sorted([*others, *dict(plugins.each(SOURCES))]),
    }


def models_below(path: Path, plugins: Providers = OWN) -> Iterator[Path]:
    """Yield ``path`` itself if it is a model or an adapter or contains none, else the models below it.

    For a model in several files that are models by name, the first file stands for all.
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
        yield path  # its survey says that it is none


def survey(
    path: Path,
    choice: FormatChoice,
    lookup: FormatLookup,
    *,
    needs_weights: bool = True,
    plugins: Providers = OWN,
) -> Survey:
    """Examine one file or directory; errors are reported in the result.

    For a Hugging Face directory without readable weights, sizes follow from its configuration. needs_weights: whether
    missing weights are an error.
    """
    kind = _kind(path, plugins)
    try:
        if kind == "engine-native":
            return _native(path, lookup)
        if kind == "adapter":
            find_adapter(path, plugins)  # raises where nothing that is installed reads it
            return _adapter(path)
        reader = recognizing(path, plugins)
        if reader is not None:
            return _read(path, reader, choice, lookup, needs_weights)
        return Survey(path, "", why_not=plugins.missing_wheel(str(path)) or _is_none(path, plugins))
    except InfengError as error:
        return Survey(path, kind, why_not=str(error))


def shape_of(base: str, choice: FormatChoice, lookup: FormatLookup, providers: Providers = OWN) -> ModelConfig:
    """Return the configuration of a base; of a name it alone is fetched. Raises ModelError for what is no model."""
    path = Path(base).expanduser()
    found = None if path.exists() else locate(base, providers, "configuration")
    made = survey(found or path, choice, lookup, needs_weights=False, plugins=providers)
    if made.config is None:
        raise ModelError(f"--base {base}", made.why_not or "it is no model", "give the model that answers")
    return made.config


def _is_none(path: Path, plugins: Providers) -> str:
    kinds = [reader.kind for name, reader in plugins.each(MODEL_READERS) if name not in BUILTIN_READERS]
    looked_for = f"neither config.json nor a {' or '.join(kinds)} file" if kinds else "no config.json"
    return f"it is no model: {looked_for}{', nor a folder with some' if path.is_dir() else ''}"


def _kind(path: Path, plugins: Providers) -> str:
    if artifact_manifest.is_native(path):
        return "engine-native"
    try:
        if path.is_dir() and is_adapter(path, plugins):
            return "adapter"
        reader = recognizing(path, plugins)
        if reader is not None:
            return reader.kind
        return "adapter" if path.is_file() and is_adapter(path, plugins) else ""
    except ModelError:
        return ""


def _is_one(path: Path, plugins: Providers) -> bool:
    kind = _kind(path, plugins)
    reader = recognizing(path, plugins) if kind and path.is_file() else None
    if reader is None:
        return bool(kind)
    try:
        return reader.files(path).weights[0] == path
    except InfengError:
        return True  # its survey says what is wrong


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
    manifest = artifact_manifest.read_manifest(path, lookup)
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
    """Return the number of parameters of a model."""
    matrices = sum(part.rows * spec.k for spec in model.tensors for part in spec.parts)
    return matrices + sum(part.rows for vector in model.vectors for part in vector.parts)


def active_parameters(model: Layout, config: ModelConfig) -> int:
    """Return how many parameters each token uses."""
    in_experts = sum(part.rows * spec.k for spec in model.tensors if spec.experts for part in spec.parts)
    idle = in_experts * (config.experts - config.experts_per_token) // config.experts if in_experts else 0
    return parameters(model) - idle


def weight_bytes(model: Layout, formats: Mapping[str, str], lookup: FormatLookup) -> int:
    """Return the bytes of all panels and vectors in memory."""
    panels = sum(spec.panels * lookup(formats[spec.name]).panel_bytes(spec.k) for spec in model.tensors)
    return panels + sum(4 * math.ceil(vector.size / 16) * 16 for vector in model.vectors)
