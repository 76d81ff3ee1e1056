"""The files that make a tokenizer, as one archive whose bytes are the same each time."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2

from infeng_serve.protocol.errors import ApiError

CHUNK = 64 << 10
"""Bytes of a message."""

NAMES = (
    "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.json",
)  # fmt: skip
PATTERNS = ("*.tiktoken", "*.jinja")

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that an archive can hold."""


def archive(folder: Path) -> bytes:
    """Return a zip of a folder's files; raises ApiError 404 where it has none of them."""
    files = [folder / name for name in NAMES]
    files += [path for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for path in files:
            if path.is_file():
                entry = zipfile.ZipInfo(path.name, _EPOCH)
                made.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        if not made.namelist():
            raise ApiError(404, "The model has no files of a tokenizer.", code="not_found")
    return data.getvalue()


def chunks(data: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Return an archive in messages, its SHA-256 with the last."""
    for begin in range(0, len(data), CHUNK):
        is_last = begin + CHUNK >= len(data)
        digest = hashlib.sha256(data).hexdigest() if is_last else ""
        yield common_pb2.GetTokenizerChunk(data=data[begin : begin + CHUNK], sha256=digest)
