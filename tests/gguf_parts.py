"""GGUF files made byte by byte, independently of the code under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

U32, STRING, ARRAY, F32_TYPE = 4, 8, 9, 0


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def u32(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", U32, value)


def string(key: str, value: str | bytes) -> bytes:
    return text(key) + struct.pack("<I", STRING) + text(value)


def strings(key: str, values: Sequence[str]) -> bytes:
    return text(key) + struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(text, values))


def info(
    name: str | bytes, shape: Sequence[int], kind: int = F32_TYPE, offset: int = 0, count: int | None = None
) -> bytes:
    """Describe a tensor; ``shape`` as the format has it, the shortest stride first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape) if count is None else count, *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


@dataclass
class Raw:
    """A file in parts; a part that is None follows from the others."""

    magic: bytes = b"GGUF"
    version: int = 3
    entries: list[bytes] = field(default_factory=lambda: [string("general.architecture", "llama")])
    infos: list[bytes] = field(default_factory=lambda: [info("a", (8, 2)), info("b", (4,), offset=64)])
    data: bytes = bytes(range(80))
    entry_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def bytes(self) -> bytes:
        tensors = len(self.infos) if self.tensor_count is None else self.tensor_count
        entries = len(self.entries) if self.entry_count is None else self.entry_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, entries)
        head += b"".join(self.entries) + b"".join(self.infos)
        return head + bytes(-len(head) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path
