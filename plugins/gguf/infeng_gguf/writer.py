"""The writer of GGUF files, version 3, with one tensor in memory at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from infeng_convert.api import Quantized
from numpy.typing import NDArray

from infeng_gguf.header import ARRAY, MAGIC, SCALARS, STRING
from infeng_gguf.types import BY_NAME, TensorType

ALIGNMENT = 32
CHUNK = 1 << 22  # values quantized at a time
U32, I32, F32, BOOL = 4, 5, 6, 7
_KINDS = {np.dtype(code): kind for kind, code in SCALARS.items()}


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write; ``shape`` as in NumPy, rows first."""

    name: str
    type: TensorType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return int(np.prod(self.shape, dtype=np.int64)) // self.type.block * self.type.nbytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[NewTensor],
    values: Callable[[NewTensor], NDArray[np.float32] | Quantized],
) -> None:
    """Write and fsync a new file.

    values: returns each tensor, in order, as float32 of its shape or, for types of ``KEPT``, as codes and scales of its
    blocks, which are stored exactly. metadata: bool, int (as u32), float (as f32), str, lists of str, and arrays (with
    their own type).
    """
    with path.open("xb") as file:
        file.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        for key, value in metadata.items():
            _text(file, key)
            _value(file, value)
        offset = 0
        for tensor in tensors:
            _text(file, tensor.name)
            file.write(struct.pack("<I", len(tensor.shape)))
            file.write(struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1]))
            file.write(struct.pack("<IQ", tensor.type.number, offset))
            offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        _pad(file)
        for tensor in tensors:
            for part in encoded(tensor.type, values(tensor)):
                file.write(part.tobytes())
            _pad(file)
        file.flush()
        os.fsync(file.fileno())


def encoded(type: TensorType, values: NDArray[np.float32] | Quantized) -> Iterable[NDArray[Any]]:
    """Yield the blocks of a tensor, CHUNK values at a time."""
    step = max(1, CHUNK // type.block)
    if isinstance(values, Quantized):
        codes, scales = values.codes.reshape(-1, type.block), values.scales.reshape(-1)
        for begin in range(0, len(codes), step):
            yield BLOCKS[type.name](scales[begin : begin + step], codes[begin : begin + step])
        return
    flat = values.reshape(-1, type.block)
    for begin in range(0, len(flat), step):
        yield ENCODERS[type.name](flat[begin : begin + step])


def _f16(values: NDArray[np.float32]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype("<f2")


def _bf16(values: NDArray[np.float32]) -> NDArray[Any]:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def _q8_0(values: NDArray[np.float32]) -> NDArray[Any]:
    """d = max |x| / 127, code = x / d rounded half away from zero (``quantize_row_q8_0_ref``)."""
    scale = np.abs(values).max(axis=1) / np.float32(127)
    scaled = values * _inverse(scale)[:, None]
    return _q8_0_blocks(scale, np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8))


def _q8_0_blocks(scale: NDArray[np.float32], codes: NDArray[np.int8]) -> NDArray[Any]:
    out = np.empty(len(codes), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    out["d"] = scale
    out["q"] = codes
    return out


def _q4_0(values: NDArray[np.float32]) -> NDArray[Any]:
    """d = value of largest magnitude / -8, code = x / d + 8.5, truncated, in 0 .. 15 (``quantize_row_q4_0_ref``)."""
    largest = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
    scale = largest / np.float32(-8)
    scaled = values.astype(np.float64) * _inverse(scale).astype(np.float64)[:, None]
    codes = np.trunc(scaled.astype(np.float32) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return _q4_0_blocks(scale, codes.astype(np.int8) - np.int8(8))


def _q4_0_blocks(scale: NDArray[np.float32], codes: NDArray[np.int8]) -> NDArray[Any]:
    nibbles = (codes + np.int8(8)).astype(np.uint8)
    out = np.empty(len(codes), np.dtype([("d", "<f2"), ("q", "u1", 16)]))
    out["d"] = scale
    out["q"] = nibbles[:, :16] | nibbles[:, 16:] << 4
    return out


def _inverse(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


ENCODERS: Mapping[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    "F32": lambda values: values.astype("<f4", copy=False),
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
}
BLOCKS: Mapping[str, Callable[[NDArray[np.float32], NDArray[np.int8]], NDArray[Any]]] = {
    "Q8_0": _q8_0_blocks,
    "Q4_0": _q4_0_blocks,
}
KEPT = {"Q8_0": "int8-g32", "Q4_0": "int4-g32"}
"""Type -> the weight format with the same codes and scales."""

FORMATS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
"""Value of ``--format`` -> type."""

FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}
"""``general.file_type`` (``LlamaFileType`` of gguf-py)."""


def type_for(format: str, k: int) -> TensorType:
    """Return the type of a matrix of ``k`` inputs: that of ``format``, or F16 if rows are not whole blocks."""
    type = BY_NAME[FORMATS[format]]
    return type if k % type.block == 0 else BY_NAME["F16"]


def _value(file: BinaryIO, value: Any) -> None:
    if isinstance(value, bool):
        file.write(struct.pack("<I?", BOOL, value))
    elif isinstance(value, int):
        file.write(struct.pack("<II", U32, value))
    elif isinstance(value, float):
        file.write(struct.pack("<If", F32, value))
    elif isinstance(value, str):
        file.write(struct.pack("<I", STRING))
        _text(file, value)
    elif isinstance(value, np.ndarray):
        kind = _KINDS[value.dtype]
        file.write(struct.pack("<IIQ", ARRAY, kind, len(value)) + value.astype(SCALARS[kind], copy=False).tobytes())
    else:
        file.write(struct.pack("<IIQ", ARRAY, STRING, len(value)))
        for text in value:
            _text(file, text)


def _text(file: BinaryIO, text: str) -> None:
    data = text.encode("utf-8")
    file.write(struct.pack("<Q", len(data)) + data)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))
