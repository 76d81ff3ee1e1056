"""Models and adapters exported for peers, once each, and kept in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infeng_convert.api import locked, replacing

from infeng_bench.peers import Peer, PeerError
from infeng_bench.peers.environment import Environment
from infeng_core.api import UsageError, cache_root, get_logger
from infeng_core.api import formats as formats_api

VERSION = 1  # part of the cache key; raised when an exporter's output changes


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a file with the suffix .gguf."""
    return path.suffix == ".gguf" and path.is_file()


def peer_model(peer: Peer, source: Path, format: str) -> Path:
    """Return ``source`` (a Hugging Face directory) as ``peer`` reads it, exported on the first call.

    A peer that reads GGUF gets a GGUF unchanged. format: one of ours; the peer's ``FORMATS`` maps it to the peer's.
    Raises UsageError if it has no counterpart, and PeerError if the export fails.
    """
    if is_gguf(source):
        if not peer.READS_GGUF:
            raise UsageError(peer.NAME, "it reads no GGUF", "give a Hugging Face directory, or leave this peer out")
        return source
    kind = peer.FORMATS.get(format) or peer.FORMATS.get(_stored(format))
    if kind is None:
        remedy = f"use one of {', '.join(peer.FORMATS)}"
        raise UsageError(f"{peer.NAME}", f"it has nothing that stands against {format}", remedy)
    tools = Environment(peer).tools
    destination = _place(peer, source, kind)
    if not peer.export_commands(tools, source, destination, kind):
        return peer.model_path(source)
    _export(peer, destination, kind, lambda folder: peer.export_commands(tools, source, folder, kind), peer.model_path)
    return peer.model_path(destination)


def _stored(format: str) -> str:
    """Return the name of the format whose bytes ``format`` stores."""
    try:
        return formats_api.builtin_format(format).stored
    except UsageError:  # a plugin's format, or an unknown one
        return format


def peer_adapter(peer: Any, adapter: Path, base: Path) -> Path:
    """Return a PEFT directory as ``peer`` reads it, exported on the first call; a GGUF stays unchanged.

    base: the Hugging Face directory or the GGUF of its base. Raises UsageError for a peer without adapters or one that
    reads no GGUF, and PeerError if the export fails.
    """
    if not hasattr(peer, "adapter_commands"):
        raise UsageError(peer.NAME, "requests with different adapters cannot be put to it", "leave this peer out")
    if is_gguf(adapter):
        if not peer.READS_GGUF:
            remedy = "give a PEFT directory, or leave this peer out"
            raise UsageError(peer.NAME, f"it reads no GGUF, and {adapter.name} is one", remedy)
        return adapter
    tools = Environment(peer).tools
    destination = _place(peer, adapter, f"of-{_digest(base)}")
    if not peer.adapter_commands(tools, adapter, base, destination):
        return Path(peer.adapter_path(adapter))
    what = f"adapter {adapter.name}"
    _export(
        peer, destination, what, lambda folder: peer.adapter_commands(tools, adapter, base, folder), peer.adapter_path
    )
    return Path(peer.adapter_path(destination))


def _export(
    peer: Peer, destination: Path, kind: str, commands: Callable[[Path], list[list[str]]], made: Callable[[Path], Path]
) -> None:
    """Make ``destination`` by ``commands`` if it is missing."""
    environment = Environment(peer)
    log = get_logger(__name__)
    with locked(destination, waiting=lambda: log.warning(f"{destination}: another process writes it; waiting")):
        if destination.is_dir():
            return
        record = environment.require()
        log.info(f"exporting {destination.name} for {peer.NAME}", kind=kind, versions=len(record["versions"]))
        with replacing(destination) as folder, environment.log.open("a", encoding="utf-8") as output:
            offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
            for command in commands(folder):
                environment.execute(command, f"the export to {kind}", output, offline)
            if not made(folder).exists():
                raise PeerError(peer.NAME, f"the export to {kind} wrote nothing", f"see {environment.log}")


def _place(peer: Peer, source: Path, kind: str) -> Path:
    """Return the folder of an export in the benchmarks' cache."""
    root = cache_root() / "bench"
    suffix = f"{peer.NAME}-{kind}-{VERSION}"
    if source.parent == root:
        return root / f"{source.name}-{suffix}"
    return root / f"{source.resolve().name}-{_digest(source)}-{suffix}"


def _digest(source: Path) -> str:
    """Return a digest of a file's or directory's path and the sizes and times of its files."""
    facts = [str(source.resolve())]
    for file in [source] if source.is_file() else sorted(source.iterdir()):
        status = file.stat()
        facts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
