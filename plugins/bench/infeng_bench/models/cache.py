"""Directories made once and kept in the cache, and the header of safetensors files in them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infeng_convert.api import Entry, locked, replacing, tensor_header

from infeng_core import api
from infeng_core.api import get_logger

SIZES = {"F32": 4, "F16": 2, "BF16": 2}  # bytes per value, by safetensors' name of the type


def header(dtype: str, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return the header of a safetensors file whose tensors have one ``dtype`` and the order of ``shapes``."""
    entries = [Entry(name, dtype, tuple(shape), SIZES[dtype] * math.prod(shape)) for name, shape in shapes.items()]
    return tensor_header(entries, {"format": "pt"})


def digest(facts: object, length: int = 8) -> str:
    """Return the first ``length`` hex digits of the SHA-256 of JSON-compatible facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:length]


def made_once(destination: Path, file: str, fill: Callable[[Path], None]) -> Path:
    """Return ``destination``, filled by ``fill`` unless ``file`` is in it; one process fills it, others wait.

    file: a name, or "" for the folder itself. Raises ResourceError if the disk is full or another user could have
    written there.
    """
    api.require_own(destination)
    warn = get_logger(__name__).warning
    with locked(destination, waiting=lambda: warn(f"{destination}: another process writes it; waiting")):
        if not (destination / file).exists():
            with replacing(destination) as folder:
                fill(folder)
    return destination
