"""A tokenizer's files as one reproducible archive."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2

from infeng_core.api import ModelError, get_logger
from infeng_core.api.servers import side_files
from infeng_serve.protocol.errors import ApiError

_log = get_logger(__name__)

CHUNK = 64 << 10
"""Bytes of the archive in one message."""

MOST_BYTES = 256 << 20
"""Most bytes of all files together; the largest tokenizers have 40 MB."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold, for reproducible bytes."""


def archive(folder: Path) -> bytes:
    """Return a zip of the configuration and tokenizer files that the engine reads from a model's folder.

    Raises ApiError 404 if there are none, or if one is a link out of the folder or not a regular file.
    """
    try:
        files = dict(sorted(side_files(folder).items()))
    except ModelError as error:
        _log.warning("a file of the tokenizer is not sent", reason=str(error))
        raise ApiError(404, "The model's tokenizer files cannot be sent.", code="not_found") from None
    if not files or sum(map(len, files.values())) > MOST_BYTES:
        raise ApiError(404, "The model has no tokenizer files.", code="not_found")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def chunks(data: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Yield an archive in messages; the last one has its SHA-256."""
    for begin in range(0, len(data), CHUNK):
        is_last = begin + CHUNK >= len(data)
        digest = hashlib.sha256(data).hexdigest() if is_last else ""
        yield common_pb2.GetTokenizerChunk(data=data[begin : begin + CHUNK], sha256=digest)
