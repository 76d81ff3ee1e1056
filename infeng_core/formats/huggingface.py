"""The files of a Hugging Face model directory: config.json, safetensors, one or several with an index, a tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

from infeng_core.errors import ModelError
from infeng_core.files import read_bytes, read_json
from infeng_core.formats.quantized import scheme
from infeng_core.models.config import ModelConfig
from infeng_core.models.fields import Fields

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_CONFIG = 4 << 20
MAX_SIDE_FILE = 256 << 20
CONFIG_FILES = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
CHAT_TEMPLATES = "additional_chat_templates/*.jinja"
"""Named chat templates, such as tool_use ..."""
CONVERTED_TEMPLATES = "chat_template.*.jinja"
"""... and where they lie in a converted model, which has no folders."""

TO_SAFETENSORS = (
    "convert the model to safetensors: with transformers, "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, safe_serialization=True)"
)


def read_config(directory: Path) -> ModelConfig:
    """Read config.json and, where present, generation_config.json; raises ModelError."""
    path = directory / "config.json"
    generation = directory / "generation_config.json"
    extra = read_json(generation, limit=MAX_CONFIG) if generation.exists() else None
    if extra is not None:
        extra = Fields(extra, generation, remedy="delete the file or download it again").data
    data = read_json(path, "a Hugging Face model has one: give its directory", MAX_CONFIG)
    config = ModelConfig.from_hf(data, path, extra)
    scheme.read(data, path)  # one that cannot be read is refused before weights are fetched
    return config


def read_scheme(directory: Path) -> scheme.Scheme | None:
    """Return how a directory's weights were quantized, None for floats; raises ModelError."""
    path = directory / "config.json"
    return scheme.read(read_json(path, "a Hugging Face model has one: give its directory", MAX_CONFIG), path)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a directory, without opening them; raises ModelError where there are none."""
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    if (directory / INDEX).exists():
        return [directory / name for name in sorted(set(read_index(directory).values()))]
    refuse_other_formats(directory)
    raise ModelError(f"{directory}", f"has no {SINGLE} and no {INDEX}", "give a complete model directory")


def refuse_other_formats(directory: Path) -> None:
    """Raise ModelError with the remedy where a directory holds weights in a format that cannot be read."""
    for path in sorted(directory.iterdir()):
        if path.suffix == ".gguf":
            raise ModelError(f"{directory}", "holds GGUF files, of which each is a model of its own", f"give {path}")
        if path.suffix in (".bin", ".pt", ".pth"):
            refuse_file(path)


def refuse_file(path: Path) -> None:
    """Raise ModelError with the remedy for a weight file that cannot be read."""
    raise ModelError(f"{path}", "PyTorch pickle files can run code and are not read", TO_SAFETENSORS)


def read_index(directory: Path) -> dict[str, str]:
    """Return the index's map from tensor to file name; raises ModelError."""
    path = directory / INDEX
    fields = Fields(read_json(path), path, remedy="download the model again").mapping("weight_map")
    for name in fields.data:
        file = fields.text(name)
        odd = len(file) > 255 or not file.isprintable() or set(file) & set("*?[]")
        if odd or Path(file).name != file or not file.endswith(".safetensors"):
            fields.fail(name[:200], f"is in {file[:80]!r}, which is not a safetensors file of this directory")
    return dict(fields.data)


def side_files(directory: Path) -> dict[str, bytes]:
    """Return the config and tokenizer files that a converted model keeps, contents by name.

    Named chat templates come from additional_chat_templates/NAME.jinja as chat_template.NAME.jinja.
    One that is a link out of the directory is a ModelError, except into the blobs of a hub cache's snapshot.
    """
    home = directory.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    found: dict[str, bytes] = {}
    paths = {name: directory / name for name in (*CONFIG_FILES, *TOKENIZER_FILES)}
    named = (path for path in sorted(directory.glob(CHAT_TEMPLATES)) if re.fullmatch(r"[\w-]{1,64}", path.stem))
    paths |= {f"chat_template.{path.name}": path for path in named}
    for name, path in paths.items():
        if path.is_file():
            real = path.resolve()
            if not real.is_relative_to(home) and real.parent != blobs:
                why = f"is a link to {real}, outside of the model's directory"
                raise ModelError(f"{path}", why, "put the file itself there, or remove the link")
            found[name] = read_bytes(real, MAX_SIDE_FILE)
    return found
