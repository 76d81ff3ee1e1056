"""A GGUF as a checkpoint: configuration, tensors by their Hugging Face names, and exact codes of quantized tensors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from infeng_convert.api import Kept, Quantized, WithMinima, halved, parse_config
from numpy.typing import NDArray

from infeng_core.api import ModelError
from infeng_core.api.formats import FormatChoice, FormatLookup, Layout, ModelConfig, Part, QuantFormat, layout
from infeng_gguf import experts, metadata, storage
from infeng_gguf.file import open_files
from infeng_gguf.header import Tensor
from infeng_gguf.tokenizer import GgufTokenizer
from infeng_gguf.types import TensorType, decoded

ROWS = 1 << 24  # values decoded at a time
MAX_FACTORS = 1 << 16  # bytes
PLAIN: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
INCOMPLETE = "the file is incomplete, or of another model than its metadata says: use another copy"


class GgufCheckpoint:
    """An opened GGUF with all of its files."""

    def __init__(self, path: Path) -> None:
        """Open and check that all tensors exist with the shapes that follow from the metadata; raises ModelError."""
        self.directory = path
        self.files = open_files(path)
        first = self.files[0]
        self.architecture = metadata.architecture_of(first)
        self._where = {name: file for file in self.files for name in file.tensors}
        shapes = {name: file.tensors[name].shape for name, file in self._where.items()}
        self.tokenizer = GgufTokenizer(first)
        given = metadata.config_json(first, self.architecture, shapes, self._factors())
        self.hf_config = metadata.with_tokens(given, self.tokenizer)
        self.config: ModelConfig = parse_config(self.hf_config, path)
        partial = self.hf_config.get("partial_rotary_factor", 1.0)
        if getattr(self.config.rope, "partial", 1.0) != partial:
            key = f"{self.architecture.name}.rope.dimension_count"
            first.fields.fail(key, f"rotates {partial:g} of each head, which is not run", metadata.OTHER_MODEL)
        self._ours = {theirs: name for name in self._where if (theirs := self.architecture.theirs(name))}
        self.layout: Layout = layout(self.config)
        self._experts = experts.places(self.layout, self._where)
        self._check()

    @property
    def largest(self) -> int:
        """Bytes of the largest matrix as ``array`` returns it."""
        sizes = {part: part.rows * spec.k for spec in self.layout.tensors for part in spec.parts}
        types = {part: self.tensor(part).type for part in sizes}
        return max(count * (types[part].nbytes if types[part].is_float else 4) for part, count in sizes.items())

    def name(self, part: Part) -> str:
        """Return the checkpoint name of ``part`` in this file."""
        if part.source not in self._ours and part.alternative in self._ours:
            return str(part.alternative)
        return part.source

    def tensor(self, part: Part) -> Tensor:
        """Return the stored tensor of ``part``."""
        return self._tensor(self._held(part))

    def place(self, part: Part) -> str:
        """Return "file: tensor name" for errors."""
        name = self._held(part)
        return metadata.place(self._where[name].path, name)

    def array(self, part: Part) -> NDArray[Any]:
        """Return the rows of ``part``, (rows, k) or (rows,), as float32, float16 or uint16 (bf16 bits)."""
        tensor, begin = self.tensor(part), self._begin(part)
        if part in self._in_vectors:
            row, first = divmod(begin, tensor.shape[-1])
            values = self._values(part, row, 1).reshape(-1)[first:][: part.rows]
        elif tensor.type.is_float:
            values = self._values(part, begin, part.rows)
        else:
            values = np.empty((part.rows, tensor.shape[-1]), np.float32)
            for first, count in _steps(part.rows, tensor.shape[-1]):
                values[first : first + count] = self._values(part, begin + first, count)
        values = self._straight(part, values)
        if self.architecture.norm_offset and self.name(part).endswith("norm.weight"):
            return values.astype(np.float32) - np.float32(self.architecture.norm_offset)
        return values

    def kept(self, part: Part, format: QuantFormat) -> Kept | None:
        """Return the file's codes and scales if ``format`` stores them exactly; else None."""
        tensor = self.tensor(part)
        if storage.minima_fit(tensor.type, format):
            return self._kept_minima(part, format)
        k, block = tensor.shape[-1], tensor.type.block
        if tensor.type.codes is None or not storage.codes_fit(tensor.type, format, k):
            return None
        codes, scales = np.empty((part.rows, k), np.int8), np.empty((part.rows, k // block), np.float32)
        for first, count in _steps(part.rows, k):
            rows = self._rows(part, self._begin(part) + first, count)
            found = halved(*tensor.type.codes(rows.reshape(-1, tensor.type.nbytes)))
            if found is None:
                return None
            codes[first : first + count] = found[0].reshape(count, k)
            scales[first : first + count] = found[1].reshape(count, -1)
        return Quantized(self._straight(part, codes), self._straight(part, scales))

    def _kept_minima(self, part: Part, format: QuantFormat) -> WithMinima | None:
        """Return codes, scales and minima; None if a scale is not finite, so that ``array`` reports the value."""
        tensor, grid = self.tensor(part), format.minima
        assert tensor.type.minima is not None and grid is not None
        pieces = []
        for first, count in _steps(part.rows, tensor.shape[-1]):
            rows = self._rows(part, self._begin(part) + first, count)
            found = vars(tensor.type.minima(rows.reshape(-1, tensor.type.nbytes)))
            pieces.append({name: values.reshape(count, -1) for name, values in found.items()})
        whole = {name: self._straight(part, np.concatenate([piece[name] for piece in pieces])) for name in pieces[0]}
        for name in ("scales", "minimum_scales"):
            if not np.isfinite(whole[name]).all():
                return None
            whole[name] = whole[name].repeat(tensor.type.block // grid.superblock, axis=1)
        return WithMinima(**whole)

    def formats(self, choice: FormatChoice, lookup: FormatLookup) -> dict[str, str]:
        """Return the weight format of every tensor: the requested one, or one that keeps the file's precision."""
        return storage.formats(self.layout, self._types(), choice, lookup)

    def changes(self, formats: Mapping[str, str]) -> dict[str, str]:
        """Return the quantized tensors that ``formats`` round again: {"Q4_K -> int8-row": "24 tensors"}."""
        return storage.changes(self.layout, self._types(), formats)

    def stored(self) -> dict[str, int]:
        """Return the number of tensors of each type."""
        return dict(Counter(self._tensor(name).type.name for name in self._where))

    def side_files(self) -> dict[str, bytes]:
        """Return the configuration and tokenizer files that a converted model keeps, contents by name."""
        generation = metadata.generation_json(self.files[0], self.hf_config)
        files = {"config.json": self.hf_config, "generation_config.json": generation}
        return {name: json.dumps(data, indent=1).encode() for name, data in files.items()} | self.tokenizer.files()

    def _types(self) -> dict[str, list[TensorType]]:
        held = {spec.name: dict.fromkeys(map(self._held, spec.parts)) for spec in self.layout.tensors}
        return {name: [self._tensor(one).type for one in stored] for name, stored in held.items()}

    def _values(self, part: Part, first: int, count: int) -> NDArray[Any]:
        """Return rows of the tensor that holds ``part``, in the types of ``array``."""
        rows, type = self._rows(part, first, count), self.tensor(part).type
        dtype = PLAIN.get(type.name)
        return decoded(type, rows) if dtype is None else rows.view(dtype)

    def _rows(self, part: Part, first: int, count: int) -> NDArray[np.uint8]:
        name = self._held(part)
        return self._where[name].rows(name, first, count)

    def _straight(self, part: Part, values: NDArray[Any]) -> NDArray[Any]:
        """Reorder interleaved rows to transformers' order, in which halves of a head are rotated together."""
        heads = self.architecture.rotary_heads(self.name(part), self.config.heads, self.config.kv_heads)
        return halves(values, heads) if heads else values

    def _factors(self) -> dict[str, NDArray[np.float32]]:
        """Return the file's divisors of the rotary frequencies, by tensor."""
        found = {}
        for name in metadata.OF_KIND[self.architecture.rope_factors]:
            file = self._where.get(name)
            if file is not None:
                tensor = file.tensors[name]
                if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.nbytes > MAX_FACTORS:
                    raise ModelError(metadata.place(file.path, name), "is no short list of F32", INCOMPLETE)
                found[name] = file.rows(name, 0, 1).view(np.float32).reshape(-1)
        return found

    def _held(self, part: Part) -> str:
        """Return the GGUF name of the tensor that holds ``part``."""
        return self._experts[part].name if part in self._experts else self._ours[self.name(part)]

    def _begin(self, part: Part) -> int:
        """Return the first row of a part in its stored tensor, which may have several parts."""
        return self._experts[part].begin if part in self._experts else part.begin

    @cached_property
    def _in_vectors(self) -> frozenset[Part]:
        return frozenset(part for vector in self.layout.vectors for part in vector.parts)

    def _check(self) -> None:
        for spec in self.layout.tensors:
            for part in spec.parts:
                self._check_part(part, (part.source_rows, spec.k))
        for vector in self.layout.vectors:
            for part in vector.parts:
                self._check_part(part, (part.source_rows,))
        known = self.layout.sources()
        of_experts = {place.name for place in self._experts.values()}
        for name, file in self._where.items():
            is_known = self.architecture.theirs(name) in known or name in of_experts
            if not is_known and name not in metadata.OF_KIND[self.architecture.rope_factors]:
                raise ModelError(metadata.place(file.path, name), "has no place in this model", INCOMPLETE)

    def _check_part(self, part: Part, shape: tuple[int, ...]) -> None:
        if part in self._experts:
            place = self._experts[part]
            self._check_tensor(place.name, place.shape)
            return
        name = self._ours.get(self.name(part)) or self.architecture.ours(part.source)
        held = self._where[name].tensors[name].shape if name in self._where else shape
        is_row = shape[0] == 1 and held == shape[1:]  # the exporter drops dimensions of one
        self._check_tensor(name, held if is_row else shape)

    def _check_tensor(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._where:
            raise ModelError(metadata.place(self.directory, name), "is missing", INCOMPLETE)
        tensor, place = self._tensor(name), metadata.place(self._where[name].path, name)
        if tensor.shape != shape:
            raise ModelError(place, f"is {tensor.shape}, the metadata says {shape}", INCOMPLETE)
        if not tensor.type.is_read:
            remedy = "use a file in another type: Q4_0, Q8_0 and K-quants among them"
            raise ModelError(place, f"is {tensor.type.name}, which is not read", remedy)

    def _tensor(self, name: str) -> Tensor:
        return self._where[name].tensors[name]


def halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder rows of ``heads`` heads from adjacent rotary pairs to transformers' order.

    In that order the first half of a head is rotated with its second half.
    """
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _steps(rows: int, k: int) -> Iterator[tuple[int, int]]:
    """Yield (first row, rows) of the pieces to decode."""
    step = max(1, ROWS // k)
    for first in range(0, rows, step):
        yield first, min(step, rows - first)
