"""A Hugging Face model directory: config.json, safetensors files, one or several with an index, and a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import ModelError
from infeng_core.formats.jsonfile import read_json
from infeng_core.formats.safetensors import SafetensorsFile, TensorInfo
from infeng_core.log import get_logger
from infeng_core.models.config import ModelConfig
from infeng_core.models.fields import Fields
from infeng_core.models.weights import IGNORED, Layout, Part, layout

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOAT_DTYPES = ("F32", "F16", "BF16")
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
)

TO_SAFETENSORS = (
    "convert the model to safetensors: with transformers, "
    "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, safe_serialization=True)"
)


def read_config(directory: Path) -> ModelConfig:
    """Read config.json and, where present, generation_config.json; raises ModelError."""
    path = directory / "config.json"
    generation = directory / "generation_config.json"
    extra = read_json(generation) if generation.exists() else None
    if extra is not None:
        extra = Fields(extra, generation, remedy="delete the file or download it again").data
    return ModelConfig.from_hf(read_json(path, "a Hugging Face model has one: give its directory"), path, extra)


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
        if path.suffix in (".bin", ".pt", ".pth", ".gguf"):
            refuse_file(path)


def refuse_file(path: Path) -> None:
    """Raise ModelError with the remedy for a weight file that cannot be read."""
    if path.suffix == ".gguf":
        raise ModelError(f"{path}", "GGUF files cannot be read yet", "give the model's Hugging Face directory or name")
    raise ModelError(f"{path}", "PyTorch pickle files can run code and are not read", TO_SAFETENSORS)


def read_index(directory: Path) -> dict[str, str]:
    """Return the index's map from tensor to file name; raises ModelError."""
    path = directory / INDEX
    fields = Fields(read_json(path), path, remedy="download the model again").mapping("weight_map")
    for name in fields.data:
        file = fields.text(name)
        if Path(file).name != file or not file.endswith(".safetensors"):
            fields.fail(name, f"is in {file[:80]!r}, which is not a safetensors file of this directory")
    return dict(fields.data)


class Checkpoint:
    """An opened directory: the config, the layout that follows from it, and the arrays it is made of."""

    def __init__(self, directory: Path) -> None:
        """Open every file and check that all tensors are there with the right type and shape; raises ModelError."""
        self.directory = directory
        self.config: ModelConfig = read_config(directory)
        self.layout: Layout = layout(self.config)
        self._where = self._open()
        self._check()

    def array(self, part: Part) -> NDArray[Any]:
        """Return the tensor of ``part``, (rows, k) or (rows,), as float32, float16 or, holding bf16, uint16."""
        name = self.name(part)
        return self._where[name].array(name)

    def release(self, part: Part) -> None:
        """Let the system drop the tensor's pages."""
        name = self.name(part)
        self._where[name].release(name)

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""
        name = self.name(part)
        return f"{self._where[name].path}: tensor {name}"

    def name(self, part: Part) -> str:
        """Return the name under which the checkpoint holds ``part``."""
        if part.source not in self._where and part.alternative in self._where:
            return str(part.alternative)
        return part.source

    def _open(self) -> dict[str, SafetensorsFile]:
        files = weight_files(self.directory)
        missing = [path.name for path in files if not path.exists()]
        if missing:
            index = self.directory / INDEX
            raise ModelError(f"{index}", f"names {', '.join(missing)}, which is missing", "download the missing file")
        opened = [SafetensorsFile(path) for path in files]
        where = {name: file for file in opened for name in file.tensors}
        if sum(len(file.tensors) for file in opened) != len(where):
            name = next(name for name in where if sum(name in file.tensors for file in opened) > 1)
            raise ModelError(f"{self.directory}", f"tensor {name} is in two files", "download the model again")
        return where

    def _check(self) -> None:
        for spec in self.layout.tensors:
            for part in spec.parts:
                self._check_part(part, (part.rows, spec.k))
        for vector in self.layout.vectors:
            for part in vector.parts:
                self._check_part(part, (part.rows,))
        known = self.layout.sources()
        unknown = [name for name in self._where if name not in known and not IGNORED.search(name)]
        inside = [name for name in unknown if name.startswith("model.")]
        if inside:
            others = f" (nor have {len(inside) - 1} others)" if len(inside) > 1 else ""
            why = f"tensor {inside[0]} has no place in this model{others}"
            raise ModelError(f"{self._where[inside[0]].path}", why, "the file does not match its config.json")
        if unknown:
            log = get_logger(__name__)
            log.warning("tensors outside the model are ignored", model=str(self.directory), tensors=unknown[:8])
        self._check_tied()

    def _check_tied(self) -> None:
        """Warn where a head is stored that differs from the embeddings to which config.json ties it."""
        part = self.layout.tensors[0].parts[0]
        if part.alternative in self._where and part.source in self._where:
            head, embed = (self._where[name].array(name) for name in (part.alternative, part.source))
            if head.dtype != embed.dtype or not np.array_equal(head, embed):
                log = get_logger(__name__)
                log.warning(f"{part.alternative} differs from {part.source} but is tied to it: it is ignored")
            for name in (part.alternative, part.source):
                self._where[name].release(name)

    def _check_part(self, part: Part, shape: tuple[int, ...]) -> None:
        name = self.name(part)
        file = self._where.get(name)
        if file is None:
            also = f" (nor {part.alternative})" if part.alternative else ""
            place = f"{self.directory / (SINGLE if (self.directory / SINGLE).exists() else INDEX)}"
            remedy = "the file does not match its config.json, or is incomplete: download the model again"
            raise ModelError(place, f"tensor {name} is missing{also}", remedy)
        info: TensorInfo = file.tensors[name]
        if info.shape != shape:
            why = f"tensor {name} is {info.shape}, config says {shape}"
            raise ModelError(f"{file.path}", why, "the file does not match its config.json")
        if info.dtype not in FLOAT_DTYPES:
            why = f"tensor {name} is {info.dtype}, weights must be F32, F16 or BF16"
            raise ModelError(f"{file.path}", why, "use the model's unquantized release")


def widened(array: NDArray[Any]) -> NDArray[np.float32]:
    """Return float16, float32 or, in uint16, bf16 values as float32, which holds all of them exactly."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def side_files(directory: Path) -> dict[str, Path]:
    """Return the config and tokenizer files that a converted model keeps, by name."""
    names = (*CONFIG_FILES, *TOKENIZER_FILES)
    return {name: directory / name for name in names if (directory / name).is_file()}
