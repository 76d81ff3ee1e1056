"""Blocks of GGUF: values are those of the format's own library, to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from infeng_gguf.types import BY_NAME, TYPES, decoded
from infeng_gguf.writer import ENCODERS, encoded

READ = [type.name for type in TYPES.values() if type.is_read]


def test_sizes_agree_with_the_gguf_library() -> None:
    theirs = {kind.name: (kind.value, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    for type in TYPES.values():
        if type.name != "Q8_1":  # which is of no file; the library counts its sums as float32
            assert theirs[type.name] == (type.number, type.block, type.nbytes)


@pytest.mark.parametrize("name", READ)
def test_any_bytes_decode_to_the_values_of_the_gguf_library(name: str) -> None:
    type = BY_NAME[name]
    raw = np.random.default_rng(type.number).integers(0, 256, (9, 3 * type.nbytes), np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(raw.copy(), gguf.GGMLQuantizationType[name]).reshape(9, -1)
    ours = decoded(type, raw)
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    assert ((ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.parametrize("name", [type.name for type in TYPES.values() if type.codes])
def test_codes_are_within_the_range_of_their_type(name: str) -> None:
    type = BY_NAME[name]
    assert type.codes is not None
    raw = np.random.default_rng(1).integers(0, 256, (512, type.nbytes), np.uint8)
    codes, scales = type.codes(raw)
    assert codes.dtype == np.int8 and scales.shape == (512,)
    assert (codes.min(), codes.max()) == (type.low, type.high)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_written_bytes_equal_those_of_the_gguf_library(name: str) -> None:
    values = np.random.default_rng(3).standard_normal((64, 256)).astype(np.float32)
    values[0] = 0
    values[1, :32] = np.linspace(-1, 1, 32)  # halves
    values[2] *= 1e-6
    theirs = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    ours = b"".join(part.tobytes() for part in encoded(BY_NAME[name], values))
    assert ours == theirs.tobytes()
