"""The files of a Hugging Face model directory: config.json, safetensors, one or several with an index, a tokenizer."""

from __future__ import annotations

from pathlib import Path

from infeng_convert.configs.families import config_keys
from infeng_convert.configs.model_config import parse_config
from infeng_convert.quantized import scheme
from infeng_core.api import ModelError, model_file, read_json
from infeng_core.api.formats import SNAPSHOTS, Fields, ModelConfig

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_CONFIG = 4 << 20

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
    config = parse_config(data, path, extra)
    if config.rope.partial != 1.0 and not getattr(config_keys()[config.family], "ROTATES_PART", False):
        # transformers ignores it or fails. Readers of other files, where it counts, read no config.json.
        why = f"partial_rotary_factor is {config.rope.partial:g}, and family {config.family} rotates whole heads"
        raise ModelError(f"{path}", why, "use a model as it was released")
    scheme.read(data, path)  # refuses an unreadable scheme before weights are downloaded
    return config


def read_scheme(directory: Path) -> scheme.Scheme | None:
    """Return how a directory's weights were quantized, None for floats; raises ModelError."""
    path = model_file(directory, "config.json")
    return scheme.read(read_json(path, "a Hugging Face model has one: give its directory", MAX_CONFIG), path)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a directory, without opening them; raises ModelError if there are none."""
    names: list[str] = []
    if (directory / SINGLE).exists():
        names = [SINGLE]
    elif (directory / INDEX).exists():
        names = sorted(set(read_index(directory).values()))
    if names:
        if directory.parent.name == SNAPSHOTS:  # elsewhere weights may be links to other disks
            for name in names:
                model_file(directory, name)
        return [directory / name for name in names]
    refuse_other_formats(directory)
    raise ModelError(f"{directory}", f"has no {SINGLE} and no {INDEX}", "give a complete model directory")


def refuse_other_formats(directory: Path) -> None:
    """Raise ModelError with a remedy if a directory holds weights in an unsupported format."""
    for path in sorted(directory.iterdir()):
        if path.suffix in (".bin", ".pt", ".pth"):
            refuse_file(path)


def refuse_file(path: Path) -> None:
    """Raise ModelError with a remedy for a weight file in an unsupported format."""
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
