"""A model in the form that a peer reads, exported once from the Hugging Face directory and kept in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infeng_bench.peers import Peer, PeerError
from infeng_bench.peers.environment import Environment
from infeng_core import api
from infeng_core.api import UsageError, cache_root, get_logger
from infeng_core.api import formats as formats_api

VERSION = 1  # counts changes of what exporters write: other versions do not share a place in the cache


def is_gguf(path: Path) -> bool:
    """Return whether ``path`` is a GGUF, by its name."""
    return path.suffix == ".gguf" and path.is_file()


def peer_model(peer: Peer, source: Path, format: str) -> Path:
    """Return ``source`` (a Hugging Face directory) as ``peer`` reads it, exported on the first call.

    A GGUF is given as it is to a peer that reads GGUF: the very same file as ours. format: one of ours; the peer's
    ``FORMATS`` says what stands against it. Raises UsageError where nothing does, and PeerError where the export fails.
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
    """Return the format of the same bytes over groups of 64 inputs as they are, which is all that a file shows."""
    try:
        return formats_api.builtin_format(format).stored
    except UsageError:  # a plugin's, or none
        return format


def peer_adapter(peer: Any, adapter: Path, base: Path) -> Path:
    """Return a PEFT directory as ``peer`` reads it, exported on the first call; a GGUF is given as it is.

    base: the Hugging Face directory or the GGUF of its base. Raises UsageError for a peer without adapters or one that
    reads no GGUF, and PeerError where the export fails.
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
    """Fill ``destination`` by ``commands`` unless it is there."""
    environment = Environment(peer)
    log = get_logger(__name__)
    with api.locked(destination, waiting=lambda: log.warning(f"{destination}: another process writes it; waiting")):
        if destination.is_dir():
            return
        record = environment.require()
        log.info(f"exporting {destination.name} for {peer.NAME}", kind=kind, versions=len(record["versions"]))
        with api.replacing(destination) as folder, environment.log.open("a", encoding="utf-8") as output:
            offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
            for command in commands(folder):
                environment.execute(command, f"the export to {kind}", output, offline)
            if not made(folder).exists():
                raise PeerError(peer.NAME, f"the export to {kind} wrote nothing", f"see {environment.log}")


def _place(peer: Peer, source: Path, kind: str) -> Path:
    """Return where an export lies: beside the source if that is in the benchmarks' own cache."""
    root = cache_root() / "bench"
    suffix = f"{peer.NAME}-{kind}-{VERSION}"
    if source.parent == root:
        return root / f"{source.name}-{suffix}"
    return root / f"{source.resolve().name}-{_digest(source)}-{suffix}"


def _digest(source: Path) -> str:
    """Return what names a directory, or a file, and the state of its files."""
    facts = [str(source.resolve())]
    for file in [source] if source.is_file() else sorted(source.iterdir()):
        status = file.stat()
        facts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
