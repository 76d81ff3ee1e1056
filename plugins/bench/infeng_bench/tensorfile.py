"""The beginning of a safetensors file, for those that write one tensor after the other without holding them all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

SIZES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a value, by the name that the file has for its type."""


def header(dtype: str, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return what comes before the data of tensors of one ``dtype`` that follow each other in the order of ``shapes``.

    Format: 8 bytes of length, JSON padded with blanks, then the data (huggingface/safetensors, "Format").
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in shapes.items():
        end = position + SIZES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
