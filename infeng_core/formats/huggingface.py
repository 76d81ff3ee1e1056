"""The files of a Hugging Face model directory: config.json, safetensors, one or several with an index, a tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

from infeng_core.errors import ModelError
from infeng_core.files import SNAPSHOTS, model_file, read_bytes, read_json
from infeng_core.formats.quantized import scheme
from infeng_core.models.config import ModelConfig
from infeng_core.models.families import families
from infeng_core.models.typed_fields import Fields

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

_NAME = re.compile(r"[\w-]{1,64}")
_NAMED = re.compile(r"chat_template\.[\w-]{1,64}\.jinja")

TO_SAFETENSORS = (
    "convert the model to safetensors: with transformers, "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, safe_serialization=True)"
)


def read_config(directory: Path) -> ModelConfig:
    """Read config.json and, where present, generation_config.json; raises ModelError."""
    path = model_file(directory, "config.json")
    generation = model_file(directory, "generation_config.json")
    extra = read_json(generation, limit=MAX_CONFIG) if generation.exists() else None
    if extra is not None:
        extra = Fields(extra, generation, remedy="delete the file or download it again").data
    data = read_json(path, "a Hugging Face model has one: give its directory", MAX_CONFIG)
    config = ModelConfig.from_hf(data, path, extra)
    if config.rope.partial != 1.0 and not getattr(families()[config.family], "ROTATES_PART", False):
        # transformers ignores it or fails. Readers of other files, in which it counts, read no config.json.
        why = f"partial_rotary_factor is {config.rope.partial:g}, and family {config.family} rotates whole heads"
        raise ModelError(f"{path}", why, "use a model as it was released")
    scheme.read(data, path)  # one that cannot be read is refused before weights are fetched
    return config


def read_scheme(directory: Path) -> scheme.Scheme | None:
    """Return how a directory's weights were quantized, None for floats; raises ModelError."""
    path = model_file(directory, "config.json")
    return scheme.read(read_json(path, "a Hugging Face model has one: give its directory", MAX_CONFIG), path)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a directory, without opening them; raises ModelError where there are none."""
    names: list[str] = []
    if (directory / SINGLE).exists():
        names = [SINGLE]
    elif (directory / INDEX).exists():
        names = sorted(set(read_index(directory).values()))
    if names:
        if directory.parent.name == SNAPSHOTS:  # elsewhere weights may be links to wherever there is room for them
            for name in names:
                model_file(directory, name)
        return [directory / name for name in names]
    refuse_other_formats(directory)
    raise ModelError(f"{directory}", f"has no {SINGLE} and no {INDEX}", "give a complete model directory")


def refuse_other_formats(directory: Path) -> None:
    """Raise ModelError with the remedy where a directory holds weights in a format that cannot be read."""
    for path in sorted(directory.iterdir()):
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
    Links are followed as ``files.model_file`` says; raises ModelError.
    """
    found: dict[str, bytes] = {}
    paths = {name: name for name in (*CONFIG_FILES, *TOKENIZER_FILES)}
    paths |= {
        path.name: path.name for path in sorted(directory.glob(CONVERTED_TEMPLATES)) if _NAMED.fullmatch(path.name)
    }
    named = (path for path in sorted(directory.glob(CHAT_TEMPLATES)) if _NAME.fullmatch(path.stem))
    paths |= {f"chat_template.{path.name}": f"{path.parent.name}/{path.name}" for path in named}
    for name, place in paths.items():
        if (directory / place).is_file():
            found[name] = read_bytes(model_file(directory, place), MAX_SIDE_FILE)
    return found
