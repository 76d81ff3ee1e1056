"""What a file or directory is, and what a model in it would need, without reading its weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infeng_core.errors import InfengError, ModelError
from infeng_core.files import read_bytes
from infeng_core.formats import huggingface, native
from infeng_core.formats.adapters.artifact import is_artifact
from infeng_core.formats.adapters.peft import is_peft
from infeng_core.formats.checkpoints import open_checkpoint
from infeng_core.formats.choice import FormatChoice, by_format
from infeng_core.formats.gguf.architectures import ARCHITECTURES
from infeng_core.formats.gguf.checkpoint import GgufCheckpoint
from infeng_core.formats.gguf.file import SPLIT, GgufFile, is_gguf
from infeng_core.formats.gguf.types import TYPES
from infeng_core.formats.hfcheckpoint import FLOAT_DTYPES
from infeng_core.formats.quant import BUILTIN, FormatLookup
from infeng_core.formats.quantized.scheme import METHODS
from infeng_core.formats.quantized.storage import foreseen
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.weights import Layout, layout

MAX_FOUND = 1000
TEMPLATES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class Survey:
    """One model or adapter. What is not known is empty; ``why_not`` says why it cannot be run, "" where it can."""

    path: Path
    kind: str  # "Hugging Face", "GGUF", "engine-native", "adapter", or "" where it is nothing of ours
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


def readable() -> dict[str, Any]:
    """Return what can be run: families with their classes, types of tensors by kind of file, weight formats."""
    return {
        "families": {name: list(family.ARCHITECTURES) for name, family in families().items()},
        "safetensors": list(FLOAT_DTYPES),
        "quantized": list(METHODS),
        "gguf": {
            "architectures": [name for name, one in ARCHITECTURES.items() if one.family in families()],
            "types": [type.name for type in TYPES.values() if type.is_read],
        },
        "formats": list(BUILTIN),
    }


def models_below(path: Path) -> Iterator[Path]:
    """Yield ``path`` itself where it is a model or an adapter or holds none, else those in it and in its folders.

    Of a GGUF in several files the first stands for all.
    """
    if not path.is_dir() or _kind(path):
        yield path
        return
    found = 0
    for child in sorted(path.iterdir()):
        inside = [child] if _is_one(child) else sorted(filter(_is_one, child.iterdir())) if child.is_dir() else []
        for one in inside:
            found += 1
            if found > MAX_FOUND:
                raise ModelError(f"{path}", f"holds more than {MAX_FOUND} models", "name a folder with fewer")
            yield one
    if not found:
        yield path  # of which is said that it is none


def survey(path: Path, choice: FormatChoice, lookup: FormatLookup, *, needs_weights: bool = True) -> Survey:
    """Look at one file or directory; whatever is wrong with it is in the answer.

    Of a Hugging Face directory without readable weights sizes follow from its configuration. needs_weights: whether
    that they are not there is wrong.
    """
    kind = _kind(path)
    try:
        if kind == "GGUF":
            return _gguf(path, choice, lookup)
        if kind == "engine-native":
            return _native(path, lookup)
        if kind == "Hugging Face":
            return _huggingface(path, choice, lookup, needs_weights)
        if kind == "adapter":
            return Survey(path, kind, why_not="it is an adapter: give it with --lora NAME=PATH, over its base")
        why_not = "it is no model: neither config.json nor a GGUF file"
        return Survey(path, "", why_not=f"{why_not}, nor a folder with some" if path.is_dir() else why_not)
    except InfengError as error:
        return Survey(path, kind, why_not=str(error))


def _kind(path: Path) -> str:
    try:
        if is_gguf(path):
            return "GGUF"
    except ModelError:
        return ""
    if native.is_native(path):
        return "engine-native"
    if path.is_dir() and (is_peft(path) or is_artifact(path)):
        return "adapter"
    return "Hugging Face" if (path / "config.json").is_file() else ""


def _is_one(path: Path) -> bool:
    split = SPLIT.fullmatch(path.name)
    if path.is_file():
        return path.suffix == ".gguf" and (split is None or int(split["number"]) == 1)
    return bool(_kind(path))


def _gguf(path: Path, choice: FormatChoice, lookup: FormatLookup) -> Survey:
    if GgufFile(path).metadata.get("general.type") == "adapter":
        return Survey(path, "adapter", why_not="it is an adapter: give it with --lora NAME=PATH, over its base")
    checkpoint = GgufCheckpoint(path)
    formats = checkpoint.formats(choice, lookup)
    words = checkpoint.tokenizer.files()  # says what is wrong with the vocabulary
    return Survey(
        path,
        "GGUF",
        checkpoint.config,
        parameters(checkpoint.layout),
        active_parameters(checkpoint.layout, checkpoint.config),
        checkpoint.stored(),
        formats,
        checkpoint.changes(formats),
        weight_bytes(checkpoint.layout, formats, lookup),
        tokenizer_bytes=len(words["tokenizer.json"]),
        has_template="tokenizer.chat_template" in checkpoint.files[0].metadata,
    )


def _huggingface(path: Path, choice: FormatChoice, lookup: FormatLookup, needs_weights: bool) -> Survey:
    config, scheme, why_not = huggingface.read_config(path), huggingface.read_scheme(path), ""
    stored: Mapping[str, int] = {}
    changes: Mapping[str, str] = {}
    arranged = layout(config)
    formats = foreseen(arranged, scheme, choice, lookup)
    try:
        checkpoint = open_checkpoint(path)
        config, arranged, stored = checkpoint.config, checkpoint.layout, checkpoint.stored()
        formats = checkpoint.formats(choice, lookup)
        changes = checkpoint.changes(formats)
    except ModelError as error:
        if needs_weights or any(path.glob("*.safetensors")):
            why_not = str(error)
    return Survey(
        path,
        "Hugging Face",
        config,
        parameters(arranged),
        active_parameters(arranged, config),
        stored,
        formats,
        changes,
        weight_bytes(arranged, formats, lookup),
        tokenizer_bytes=_tokenizer_bytes(path),
        has_template=_has_template(path),
        method="" if scheme is None else scheme.method,
        why_not=why_not,
    )


def _native(path: Path, lookup: FormatLookup) -> Survey:
    manifest = native.read_manifest(path, lookup)
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
        tokenizer_bytes=_tokenizer_bytes(path),
        has_template=_has_template(path),
    )


def _tokenizer_bytes(directory: Path) -> int:
    """Return the size of the file that the tokenizer is read from, at least 1; 0 where there is none."""
    files = (directory / name for name in ("tokenizer.json", "tokenizer.model"))
    return next((max(1, file.stat().st_size) for file in files if file.is_file()), 0)


def _has_template(directory: Path) -> bool:
    settings = directory / "tokenizer_config.json"
    if any((directory / name).is_file() for name in TEMPLATES):
        return True
    return settings.is_file() and b'"chat_template"' in read_bytes(settings)


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
