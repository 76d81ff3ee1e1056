"""A Hugging Face model directory with float weights: its tensors by the names in the layout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_convert.configs.multimodal import inside, outside, prefixes
from infeng_convert.huggingface import INDEX, SINGLE, read_config, weight_files
from infeng_convert.interfaces.quantizers import Kept
from infeng_convert.safetensors_file import FLOAT_DTYPES, SafetensorsFile, as_matrix
from infeng_convert.tokenizer_files import with_tokenizer
from infeng_core.api import ModelError, get_logger
from infeng_core.api.formats import (
    IGNORED,
    FormatChoice,
    FormatLookup,
    Layout,
    ModelConfig,
    Part,
    QuantFormat,
    TensorInfo,
    layout,
)
from infeng_core.api.servers import side_files

COMPARED = 16 << 20  # bytes of two tensors that are compared at a time


class FloatCheckpoint:
    """An opened directory: the config, the layout that follows from it, and its arrays."""

    def __init__(self, directory: Path) -> None:
        """Open every file and check the presence, type and shape of all tensors; raises ModelError."""
        self.directory = directory
        config = read_config(directory)
        self._where = self._open()
        self.config: ModelConfig = self._as_stored(config)
        self.layout: Layout = layout(self.config)
        self._check()

    def array(self, part: Part) -> NDArray[Any]:
        """Return the rows of ``part``, (rows, k) or (rows,), as float32, float16 or, holding bf16, uint16."""
        part = self._held(part)
        name = self.name(part)
        file, stored = self._where[name], self._stored(name)
        if part.each:
            return _of_expert(file, stored, part)
        return file.array(stored, part.begin, part.rows if part.of else None)

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return None: floats have no codes and scales."""
        return None

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor."""
        return choice.for_model(self.config, lookup)

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return {}: no quantized tensor is rounded again."""
        return {}

    def stored(self) -> dict[str, int]:
        """Return the number of tensors of each type."""
        return dict(Counter(file.tensors[self._stored(name)].dtype for name, file in self._where.items()))

    def side_files(self) -> dict[str, bytes]:
        """Return the config and tokenizer files that a converted model keeps, contents by name."""
        return with_tokenizer(side_files(self.directory), self.config.family, self.directory)

    @property
    def where(self) -> Mapping[str, SafetensorsFile]:
        """The file of each tensor, by the text model's name."""
        return self._where

    def stored_as(self, name: str) -> str:
        """Return the file's name for a tensor of the text model."""
        return self._stored(name)

    @property
    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max(info.nbytes for file in self._where.values() for info in file.tensors.values())

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""
        name = self.name(part)
        return f"{self._where[name].path}: tensor {self._stored(name)}"

    def name(self, part: Part) -> str:
        """Return the name under which the checkpoint holds ``part``."""
        part = self._held(part)
        if part.source not in self._where and part.alternative in self._where:
            return str(part.alternative)
        return part.source

    def _held(self, part: Part) -> Part:
        """Return ``part``, or its rows in a stack of all experts if the checkpoint has one."""
        has_stack = part.stack is not None and part.source not in self._where and part.stack.source in self._where
        return part.stack if part.stack is not None and has_stack else part

    def _open(self) -> dict[str, SafetensorsFile]:
        files = weight_files(self.directory)
        missing = [path.name for path in files if not path.exists()]
        if missing:
            index = self.directory / INDEX
            others = f" (nor are {len(missing) - 1} others there)" if len(missing) > 1 else ""
            raise ModelError(f"{index}", f"names {missing[0]}, which is missing{others}", "download the missing file")
        where: dict[str, SafetensorsFile] = {}
        for file in map(SafetensorsFile, files):
            twice = next((name for name in file.tensors if name in where), None)
            if twice is not None:
                raise ModelError(f"{self.directory}", f"tensor {twice} is in two files", "download the model again")
            where |= dict.fromkeys(file.tensors, file)
        self._prefixes = prefixes(where)
        if not self._prefixes:
            return where
        texts = {ours: where[theirs] for theirs in where if (ours := inside(theirs, self._prefixes))}
        get_logger(__name__).debug("tensors beside the text model are not read", count=len(where) - len(texts))
        return texts

    def _stored(self, name: str) -> str:
        """Return the name in the file of a tensor of the text model."""
        return outside(name, self._prefixes)

    def _check(self) -> None:
        for spec in self.layout.tensors:
            for part in spec.parts:
                self._check_part(self._held(part), spec.k)
        for vector in self.layout.vectors:
            for part in vector.parts:
                self._check_part(part)
        known = self._known()
        unknown = [name for name in self._where if name not in known and not IGNORED.search(name)]
        inside = [name for name in unknown if name.startswith("model.")]
        if inside:
            others = f" (nor have {len(inside) - 1} others)" if len(inside) > 1 else ""
            why = f"tensor {inside[0]} has no place in this model{others}"
            raise ModelError(f"{self._where[inside[0]].path}", why, "the file does not match its config.json")
        if unknown:
            log = get_logger(__name__)
            log.warning("tensors outside the model are ignored", model=str(self.directory), tensors=unknown[:8])

    def _known(self) -> set[str]:
        """Return every name that the files may contain."""
        return self.layout.sources()

    def _as_stored(self, config: ModelConfig) -> ModelConfig:
        """Return the config corrected by the weights: a stored head that differs from the embeddings is not tied.

        transformers does the same (modeling_utils.py, ``tie_weights``): in such a model config.json is wrong, not the
        weights.
        """
        part = layout(config).tensors[0].parts[0]
        if part.alternative not in self._where or part.source not in self._where:
            return config
        if self._are_same(part.alternative, part.source):
            return config
        warning = f"{part.alternative} differs from {part.source}, to which config.json ties it: it is used as stored"
        get_logger(__name__).warning(warning)
        return replace(config, tie_embeddings=False)

    def _are_same(self, one: str, other: str) -> bool:
        files = self._where[one], self._where[other]
        names = self._stored(one), self._stored(other)
        first, second = (file.tensors[name] for file, name in zip(files, names, strict=True))
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return False
        for begin in range(0, first.nbytes, COMPARED):
            count = min(COMPARED, first.nbytes - begin)
            pieces = (file.piece(name, begin, count) for file, name in zip(files, names, strict=True))
            if not np.array_equal(next(pieces), next(pieces)):
                return False
        return True

    def _check_part(self, part: Part, k: int = 0) -> None:
        """Raise ModelError for a missing tensor, or one of another type or shape than a matrix over ``k`` inputs (0:
        a vector)."""
        name, shape = self.name(part), part.shape(k)
        file = self._where.get(name)
        if file is None:
            also = f" (nor {part.alternative})" if part.alternative else ""
            place = f"{self.directory / (SINGLE if (self.directory / SINGLE).exists() else INDEX)}"
            remedy = "the file does not match its config.json, or is incomplete: download the model again"
            packed = f"{name.removesuffix('.weight')}.qweight"
            if packed in self._where:
                why = f"tensor {name} is missing{also}; {packed} is there, but config.json does not say how"
                remedy = "put what quantize_config.json or quant_config.json says under its key quantization_config"
                raise ModelError(place, why, remedy)
            raise ModelError(place, f"tensor {name} is missing{also}", remedy)
        info: TensorInfo = file.tensors[self._stored(name)]
        if (info.shape if part.each else as_matrix(info.shape)) != shape:
            why = f"tensor {name} is {info.shape}, config says {shape}"
            raise ModelError(f"{file.path}", why, "the file does not match its config.json")
        if info.dtype not in FLOAT_DTYPES:
            why = f"tensor {name} is {info.dtype}, weights must be F32, F16 or BF16"
            raise ModelError(f"{file.path}", why, "use the model's unquantized release")


def _of_expert(file: SafetensorsFile, name: str, part: Part) -> NDArray[Any]:
    """Return ``part``, (rows, k) or (rows,), out of a tensor (experts, inputs, outputs) or (experts, outputs)."""
    expert, first = divmod(part.begin, part.each)
    matrices = file.tensors[name].shape[:-1]  # (experts, inputs), or (experts,) of vectors
    inputs = math.prod(matrices[1:])
    whole = file.array(name, expert * inputs, inputs)  # (inputs, outputs)
    found = np.ascontiguousarray(whole[:, first :: part.every][:, : part.rows].T)
    return found if len(matrices) > 1 else found.reshape(-1)
