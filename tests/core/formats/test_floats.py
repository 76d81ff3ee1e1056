"""Half precision as float32: every value exactly, without copies of float32."""

from __future__ import annotations

import numpy as np

from infeng_core.formats.floats import widened

PATTERNS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_bf16_is_the_float32_that_begins_with_it():
    made = widened(PATTERNS)
    assert made.dtype == np.float32
    assert np.array_equal(made.view(np.uint32) >> 16, PATTERNS)
    assert not np.any(made.view(np.uint32) & 0xFFFF)


def test_every_fp16_survives_float32():
    halves = PATTERNS.view(np.float16)
    assert np.array_equal(widened(halves).astype(np.float16), halves, equal_nan=True)


def test_float32_is_not_copied():
    array = np.arange(4, dtype=np.float32)
    assert np.shares_memory(widened(array), array)
