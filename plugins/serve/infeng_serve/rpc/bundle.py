"""The files that make a tokenizer, as one archive whose bytes are the same each time."""

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
"""Bytes of a message."""

MOST_BYTES = 256 << 20
"""Of all files together; the largest tokenizers have 40 MB."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that an archive can hold."""


def archive(folder: Path) -> bytes:
    """Return a zip of the configuration and tokenizer files of a model's folder, as the engine reads them.

    Raises ApiError 404 where it has none of them, or one that is not read: a link that leads out, no regular file.
    """
    try:
        files = dict(sorted(side_files(folder).items()))
    except ModelError as error:
        _log.warning("a file of the tokenizer is not given out", reason=str(error))
        raise ApiError(404, "The model's files of the tokenizer cannot be given out.", code="not_found") from None
    if not files or sum(map(len, files.values())) > MOST_BYTES:
        raise ApiError(404, "The model has no files of a tokenizer.", code="not_found")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def chunks(data: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """Return an archive in messages, its SHA-256 with the last."""
    for begin in range(0, len(data), CHUNK):
        is_last = begin + CHUNK >= len(data)
        digest = hashlib.sha256(data).hexdigest() if is_last else ""
        yield common_pb2.GetTokenizerChunk(data=data[begin : begin + CHUNK], sha256=digest)
