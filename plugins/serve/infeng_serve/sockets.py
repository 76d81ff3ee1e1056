"""Operating-system resources of a server: its listening socket, open files and TLS files."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from pathlib import Path

from infeng_core.api import UsageError, read_bytes

MOST_PEM = 1 << 20
"""Most bytes of a file of certificates or keys."""

BACKLOG = 2048
"""Connections that the kernel queues before they are accepted."""


def listening(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a listening socket; raises UsageError if the address cannot be used."""
    place = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(place, error.strerror or str(error), "give another --host") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        is_foreign = error.errno == errno.EADDRNOTAVAIL  # the address is not of this machine
        remedy = "give another --host" if is_foreign else f"give another {option}, or 0 for a free one"
        raise UsageError(place, error.strerror or str(error), remedy) from error
    return opened


def raise_open_files(wanted: int) -> None:
    """Raise the limit of open files to ``wanted``, as far as the system allows, if it is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def pem(path: str) -> bytes:
    """Read a file of certificates or keys; raises UsageError for one that is unreadable or too large."""
    return read_bytes(Path(path), MOST_PEM, UsageError, "give a certificate and its private key as PEM files")
