"""The parts of a safetensors file that is written: entries, the header, the bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

ALIGN = 64


@dataclass(frozen=True)
class Entry:
    """One tensor to write: ``shape`` of ``dtype`` ("U8" or "F32"), a multiple of 64 bytes in all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def header(entries: Iterable[Entry], metadata: Mapping[str, str] = MappingProxyType({"format": "infeng"})) -> bytes:
    """Return length and header of a safetensors file, padded with spaces so that the data starts 64-byte aligned."""
    document: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for entry in entries:
        end = position + entry.nbytes
        document[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return len(text).to_bytes(8, "little") + text


def write_all(write: Callable[[memoryview], int | None], data: bytes | memoryview) -> None:
    """Write every byte: one call writes 2 GB at most, and less if the disk is nearly full."""
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]
