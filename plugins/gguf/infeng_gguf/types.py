"""The tensor types of GGUF: their blocks, the decoding of blocks, and exact codes and scales.

Blocks are those of llama.cpp (``ggml/src/ggml-common.h``); decoders compute in float32 in the order of
``dequantize_row_*`` (``ggml-quants.c``), so values equal llama.cpp's to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from infeng_convert.api import MXFP4_VALUES, WithMinima
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Codes = NDArray[np.int8]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


@dataclass(frozen=True)
class TensorType:
    """A type whose blocks of ``block`` values have ``nbytes`` bytes. Functions take (blocks, nbytes) bytes.

    ``codes`` returns int8 (blocks, block) and float32 scales (blocks,) whose products are the values; None if a block
    has more than codes and a scale. ``minima`` returns codes of 4 bits with sub-scales and minima; None for other
    blocks. All functions are None for an unsupported type.
    """

    number: int
    name: str
    block: int
    nbytes: int
    decode: Callable[[Bytes], Floats] | None = None
    codes: Callable[[Bytes], tuple[Codes, Floats]] | None = None
    low: int = 0  # of the codes
    high: int = 0
    minima: Callable[[Bytes], WithMinima] | None = None

    @property
    def is_float(self) -> bool:
        """Whether values are stored individually."""
        return self.block == 1

    @property
    def is_read(self) -> bool:
        """Whether weights of this type can be read."""
        return self.decode is not None


def _records(blocks: Bytes, *fields: tuple[Any, ...]) -> Any:
    """View blocks as records, little-endian and without gaps."""
    return np.ascontiguousarray(blocks).view(np.dtype(list(fields))).reshape(-1)


def _wide(values: Any) -> Floats:
    """Return one number for each block as a column of float32."""
    wide: Floats = values.astype(np.float32)
    return wide[:, None]


def _scaled(scales: Floats, codes: Codes) -> Floats:
    """Return codes, (n, 256), times the scale of each 16 or 32 of them, (n, groups)."""
    groups = codes.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[:, :, None] * groups).reshape(-1, 256)


def _nibbles(packed: Bytes) -> Bytes:
    """Return (n, 2m) from (n, m): first the low halves, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(bits: NDArray[np.uint32]) -> Bytes:
    """Return bit i of each number, times 16, as element i: (n, 32)."""
    return ((bits[:, None] >> np.arange(32, dtype=np.uint32) & 1) << 4).astype(np.uint8)


def _q4_0(blocks: Bytes) -> tuple[Codes, Floats]:
    record = _records(blocks, ("d", "<f2"), ("q", "u1", 16))
    return _nibbles(record["q"]).astype(np.int8) - np.int8(8), record["d"].astype(np.float32)


def _q5_0(blocks: Bytes) -> tuple[Codes, Floats]:
    record = _records(blocks, ("d", "<f2"), ("h", "<u4"), ("q", "u1", 16))
    codes = (_nibbles(record["q"]) | _fifth_bits(record["h"])).astype(np.int8) - np.int8(16)
    return codes, record["d"].astype(np.float32)


def _q8_0(blocks: Bytes) -> tuple[Codes, Floats]:
    record = _records(blocks, ("d", "<f2"), ("q", "i1", 32))
    return record["q"], record["d"].astype(np.float32)


def _iq4_nl(blocks: Bytes) -> tuple[Codes, Floats]:
    record = _records(blocks, ("d", "<f2"), ("q", "u1", 16))
    return IQ4_VALUES[_nibbles(record["q"])], record["d"].astype(np.float32)


def _mxfp4(blocks: Bytes) -> tuple[Codes, Floats]:
    """The scale is 2^(e - 128), since MXFP4_VALUES are doubled."""
    record = _records(blocks, ("e", "u1"), ("q", "u1", 16))
    scale = np.ldexp(np.float32(1), record["e"].astype(np.int32) - 128).astype(np.float32)
    return MXFP4_VALUES[_nibbles(record["q"])], scale


def _times(codes: Callable[[Bytes], tuple[Codes, Floats]]) -> Callable[[Bytes], Floats]:
    def decode(blocks: Bytes) -> Floats:
        found, scales = codes(blocks)
        return found.astype(np.float32) * scales[:, None]

    return decode


def _q4_1(blocks: Bytes) -> Floats:
    record = _records(blocks, ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16))
    return _affine(record, _nibbles(record["q"]))


def _q5_1(blocks: Bytes) -> Floats:
    record = _records(blocks, ("d", "<f2"), ("m", "<f2"), ("h", "<u4"), ("q", "u1", 16))
    return _affine(record, _nibbles(record["q"]) | _fifth_bits(record["h"]))


def _affine(record: Any, codes: Bytes) -> Floats:
    return _wide(record["d"]) * codes.astype(np.float32) + _wide(record["m"])


def _shifted(packed: Bytes, run: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Return (n, runs, len(shifts), run): each run of bytes once for each shift."""
    spread = packed.reshape(len(packed), -1, 1, run) >> np.array(shifts, np.uint8)[:, None]
    return spread & np.uint8(mask)


def _q2_k(blocks: Bytes) -> Floats:
    record = _records(blocks, ("s", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("m", "<f2"))
    codes = _shifted(record["q"], 32, (0, 2, 4, 6), 3)
    return _grouped(record, record["s"] & 15, record["s"] >> 4, codes)


def _q3_k(blocks: Bytes) -> Floats:
    record = _records(blocks, ("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), ("d", "<f2"))
    low = _shifted(record["q"], 32, (0, 2, 4, 6), 3).reshape(-1, 256).astype(np.int8)
    high = _shifted(record["h"], 32, tuple(range(8)), 1).reshape(-1, 256).astype(np.int8)
    packed = record["s"]
    low4 = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high2 = _shifted(packed[:, 8:], 4, (0, 2, 4, 6), 3).reshape(-1, 16)
    scale = _wide(record["d"]) * ((low4 | high2 << 4).astype(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(scale, low - (1 - high) * np.int8(4))


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 scales and 8 minima of Q4_K and Q5_K, six bits each, from their 12 bytes."""
    first, second, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (mixed & 15) | (first >> 6 << 4)], axis=1)
    least = np.concatenate([second & 63, (mixed >> 4) | (second >> 6 << 4)], axis=1)
    return scales, least


def _four_bits(blocks: Bytes) -> WithMinima:
    """Return codes, scales and minima of Q4_K."""
    record = _records(blocks, ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128))
    codes = _shifted(record["q"], 32, (0, 4), 15).reshape(-1, 256).view(np.int8)
    return WithMinima(codes, _wide(record["d"]), _wide(record["m"]), *_six_bits(record["s"]))


def _grouped(record: Any, scales: Bytes, least: Bytes, codes: Bytes) -> Floats:
    """Return code * scale - minimum; scales and minima, (n, groups), are multiples of the block's two scales."""
    scale = _wide(record["d"]) * scales.astype(np.float32)
    shift = _wide(record["m"]) * least.astype(np.float32)
    groups = codes.reshape(*scale.shape, -1).astype(np.float32)
    return (scale[:, :, None] * groups - shift[:, :, None]).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    record = _records(blocks, ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128))
    return _grouped(record, *_six_bits(record["s"]), _shifted(record["q"], 32, (0, 4), 15))


def _q5_k(blocks: Bytes) -> Floats:
    record = _records(blocks, ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("h", "u1", 32), ("q", "u1", 128))
    low = _shifted(record["q"], 32, (0, 4), 15).reshape(-1, 256)
    high = _shifted(record["h"], 32, tuple(range(8)), 1).reshape(-1, 256)
    return _grouped(record, *_six_bits(record["s"]), low | high << np.uint8(4))


def _q6_k(blocks: Bytes) -> Floats:
    record = _records(blocks, ("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2"))
    low = _shifted(record["q"], 64, (0, 4), 15).reshape(-1, 256)
    high = _shifted(record["h"], 32, (0, 2, 4, 6), 3).reshape(-1, 256)
    scale = _wide(record["d"]) * record["s"].astype(np.float32)
    return _scaled(scale, (low | high << 4).astype(np.int8) - np.int8(32))


def _iq4_xs(blocks: Bytes) -> Floats:
    record = _records(blocks, ("d", "<f2"), ("h", "<u2"), ("l", "u1", 4), ("q", "u1", 128))
    low = _shifted(record["l"], 1, (0, 4), 15).reshape(-1, 8)
    high = (record["h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scale = _wide(record["d"]) * ((low | high << 4).astype(np.int8) - np.int8(32)).astype(np.float32)
    return _scaled(scale, IQ4_VALUES[_shifted(record["q"], 16, (0, 4), 15)])


def _plain(dtype: str) -> Callable[[Bytes], Floats]:
    return lambda blocks: np.ascontiguousarray(blocks).view(dtype).astype(np.float32, copy=False)


def _bf16(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


_ALL = (
    TensorType(0, "F32", 1, 4, _plain("<f4")),
    TensorType(1, "F16", 1, 2, _plain("<f2")),
    TensorType(2, "Q4_0", 32, 18, _times(_q4_0), _q4_0, -8, 7),
    TensorType(3, "Q4_1", 32, 20, _q4_1),
    TensorType(6, "Q5_0", 32, 22, _times(_q5_0), _q5_0, -16, 15),
    TensorType(7, "Q5_1", 32, 24, _q5_1),
    TensorType(8, "Q8_0", 32, 34, _times(_q8_0), _q8_0, -128, 127),
    TensorType(9, "Q8_1", 32, 36),
    TensorType(10, "Q2_K", 256, 84, _q2_k),
    TensorType(11, "Q3_K", 256, 110, _q3_k),
    TensorType(12, "Q4_K", 256, 144, _q4_k, minima=_four_bits),
    TensorType(13, "Q5_K", 256, 176, _q5_k),
    TensorType(14, "Q6_K", 256, 210, _q6_k),
    TensorType(15, "Q8_K", 256, 292),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18, _times(_iq4_nl), _iq4_nl, -127, 113),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136, _iq4_xs),
    TensorType(24, "I8", 1, 1),
    TensorType(25, "I16", 1, 2),
    TensorType(26, "I32", 1, 4),
    TensorType(27, "I64", 1, 8),
    TensorType(28, "F64", 1, 8),
    TensorType(29, "IQ1_M", 256, 56),
    TensorType(30, "BF16", 1, 2, _bf16),
    TensorType(34, "TQ1_0", 256, 54),
    TensorType(35, "TQ2_0", 256, 66),
    TensorType(39, "MXFP4", 32, 17, _times(_mxfp4), _mxfp4, -12, 12),
    TensorType(40, "NVFP4", 64, 36),
    TensorType(41, "Q1_0", 128, 18),
)
TYPES = {type.number: type for type in _ALL}
BY_NAME = {type.name: type for type in _ALL}


def decoded(type: TensorType, rows: Bytes) -> Floats:
    """Return the values of whole rows, (n, row bytes) -> (n, k) float32, of a supported type."""
    assert type.decode is not None
    with np.errstate(all="ignore"):  # packing finds and reports values that are not finite
        return type.decode(rows.reshape(-1, type.nbytes)).reshape(len(rows), -1)
