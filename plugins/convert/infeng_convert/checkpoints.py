"""Hugging Face directories, in floats or quantized, and the facts about a model that are known before conversion."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from infeng_convert import huggingface
from infeng_convert.hfcheckpoint import FloatCheckpoint
from infeng_convert.interfaces.readers import Checkpoint, Description, ModelFiles, ModelReader, ReaderLookup
from infeng_convert.quantized import scheme
from infeng_convert.quantized.checkpoint import QuantizedCheckpoint
from infeng_convert.quantized.storage import foreseen
from infeng_convert.safetensors_file import FLOAT_DTYPES
from infeng_core.api import read_bytes
from infeng_core.api.formats import FormatChoice, FormatLookup, ModelConfig, layout
from infeng_core.api.servers import side_files

TEMPLATES = ("chat_template.jinja", "chat_template.json")


class HuggingFace:
    """The reader of directories with a config.json, safetensors files and a tokenizer."""

    kind = "Hugging Face"

    def supports(self) -> dict[str, list[str]]:
        """Return the supported types of floats and ways of quantization."""
        return {"safetensors": list(FLOAT_DTYPES), "quantized": list(scheme.METHODS)}

    def recognizes(self, path: Path) -> bool:
        """Return whether ``path`` is a directory with a config.json."""
        return (path / "config.json").is_file()

    def files(self, path: Path) -> ModelFiles:
        """Return the safetensors files and, with their contents, the small files; raises ModelError."""
        small, index = side_files(path), path / huggingface.INDEX
        if index.is_file():
            small[huggingface.INDEX] = read_bytes(index)
        is_quantized = any(key.encode() in small.get("config.json", b"") for key in scheme.KEYS)
        return ModelFiles(huggingface.weight_files(path), small, has_own_types=is_quantized)

    def has_weights(self, path: Path) -> bool:
        """Return whether there are weights, not only a configuration; raises ModelError for weights of unsupported
        formats."""
        if any(path.glob("*.safetensors")) or (path / huggingface.INDEX).exists():
            return True
        huggingface.refuse_other_formats(path)
        return huggingface.read_scheme(path) is not None

    def describe(self, path: Path) -> Description:
        """Return the description in config.json and the tokenizer's files; raises ModelError."""
        config, found = huggingface.read_config(path), huggingface.read_scheme(path)
        return Description(
            config,
            tokenizer_bytes(path),
            has_template(path),
            "" if found is None else found.method,
            partial(foreseen, layout(config), found),
        )

    def open(self, path: Path) -> Checkpoint:
        """Open every file and check that all tensors are present; raises ModelError."""
        found = huggingface.read_scheme(path)
        return FloatCheckpoint(path) if found is None else QuantizedCheckpoint(path, found)


BUILTIN = {"huggingface": HuggingFace()}
"""The readers of this wheel by name."""


def builtin_reader(path: Path) -> ModelReader:
    """Return the reader of Hugging Face directories, which reports missing files of such a directory."""
    return BUILTIN["huggingface"]


def open_checkpoint(source: Path, reader: ReaderLookup = builtin_reader) -> Checkpoint:
    """Open the model ``source``; raises ModelError."""
    return reader(source).open(source)


def plan(
    source: Path, choice: FormatChoice, lookup: FormatLookup, reader: ReaderLookup = builtin_reader
) -> tuple[ModelConfig, dict[str, str]]:
    """Return a model's sizes and the format that each tensor would have; raises ModelError.

    A directory in floats needs only its configuration, not the weights.
    """
    found = reader(source).describe(source)
    if found.config is None or found.formats is None or found.method:
        checkpoint = reader(source).open(source)
        return checkpoint.config, checkpoint.formats(choice, lookup)
    return found.config, found.formats(choice, lookup)


def tokenizer_bytes(directory: Path) -> int:
    """Return the size of the file from which the tokenizer is read, at least 1; 0 without a tokenizer."""
    files = (directory / name for name in ("tokenizer.json", "tokenizer.model"))
    return next((max(1, file.stat().st_size) for file in files if file.is_file()), 0)


def has_template(directory: Path) -> bool:
    """Return whether a directory has a chat template, in its own file or in tokenizer_config.json."""
    settings = directory / "tokenizer_config.json"
    if any((directory / name).is_file() for name in TEMPLATES):
        return True
    return settings.is_file() and b'"chat_template"' in read_bytes(settings)
