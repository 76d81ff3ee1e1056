"""Hugging Face directories, in floats or quantized, and what of a model can be told before it is converted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from infeng_core.files import read_bytes
from infeng_core.formats import huggingface
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.formats.hfcheckpoint import FLOAT_DTYPES, FloatCheckpoint
from infeng_core.formats.model_readers import Checkpoint, Description, ModelFiles, ModelReader, ReaderLookup
from infeng_core.formats.quant import FormatLookup
from infeng_core.formats.quantized import scheme
from infeng_core.formats.quantized.checkpoint import QuantizedCheckpoint
from infeng_core.formats.quantized.storage import foreseen
from infeng_core.models.config import ModelConfig
from infeng_core.models.weights import layout

TEMPLATES = ("chat_template.jinja", "chat_template.json")


class HuggingFace:
    """The reader of directories with a config.json, safetensors files and a tokenizer."""

    kind = "Hugging Face"

    def supports(self) -> dict[str, list[str]]:
        """Return the types of floats, and the ways to quantize, that are read."""
        return {"safetensors": list(FLOAT_DTYPES), "quantized": list(scheme.METHODS)}

    def recognizes(self, path: Path) -> bool:
        """Return whether ``path`` is a directory with a config.json."""
        return (path / "config.json").is_file()

    def files(self, path: Path) -> ModelFiles:
        """Return the safetensors files and, with their contents, the small ones; raises ModelError."""
        small, index = huggingface.side_files(path), path / huggingface.INDEX
        if index.is_file():
            small[huggingface.INDEX] = read_bytes(index)
        is_quantized = any(key.encode() in small.get("config.json", b"") for key in scheme.KEYS)
        return ModelFiles(huggingface.weight_files(path), small, has_own_types=is_quantized)

    def has_weights(self, path: Path) -> bool:
        """Return whether there is more than a configuration; raises ModelError for weights that are not read."""
        if any(path.glob("*.safetensors")) or (path / huggingface.INDEX).exists():
            return True
        huggingface.refuse_other_formats(path)
        return huggingface.read_scheme(path) is not None

    def describe(self, path: Path) -> Description:
        """Return what config.json and the tokenizer's files tell; raises ModelError."""
        config, found = huggingface.read_config(path), huggingface.read_scheme(path)
        return Description(
            config,
            tokenizer_bytes(path),
            has_template(path),
            "" if found is None else found.method,
            partial(foreseen, layout(config), found),
        )

    def open(self, path: Path) -> Checkpoint:
        """Open every file and check that all tensors are there; raises ModelError."""
        found = huggingface.read_scheme(path)
        return FloatCheckpoint(path) if found is None else QuantizedCheckpoint(path, found)


BUILTIN = {"huggingface": HuggingFace()}
"""The readers of the core by name."""


def builtin_reader(path: Path) -> ModelReader:
    """Return the reader of a Hugging Face directory, which says what such a directory lacks."""
    return BUILTIN["huggingface"]


def open_checkpoint(source: Path, reader: ReaderLookup = builtin_reader) -> Checkpoint:
    """Open the model ``source``; raises ModelError."""
    return reader(source).open(source)


def plan(
    source: Path, choice: FormatChoice, lookup: FormatLookup, reader: ReaderLookup = builtin_reader
) -> tuple[ModelConfig, dict[str, str]]:
    """Return a model's sizes and the format that each tensor would have; raises ModelError.

    Of a directory in floats the configuration is enough; the weights need not be there.
    """
    found = reader(source).describe(source)
    if found.config is None or found.formats is None or found.method:
        checkpoint = reader(source).open(source)
        return checkpoint.config, checkpoint.formats(choice, lookup)
    return found.config, found.formats(choice, lookup)


def tokenizer_bytes(directory: Path) -> int:
    """Return the size of the file that the tokenizer is read from, at least 1; 0 where there is none."""
    files = (directory / name for name in ("tokenizer.json", "tokenizer.model"))
    return next((max(1, file.stat().st_size) for file in files if file.is_file()), 0)


def has_template(directory: Path) -> bool:
    """Return whether a directory has a chat template, in a file of its own or in tokenizer_config.json."""
    settings = directory / "tokenizer_config.json"
    if any((directory / name).is_file() for name in TEMPLATES):
        return True
    return settings.is_file() and b'"chat_template"' in read_bytes(settings)
