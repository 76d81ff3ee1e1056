"""Models and adapters exported for peers, once each, and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from infeng_bench.models.cache import digest, made_once
from infeng_bench.processes import PeerError

from infeng_core.api import UsageError, cache_root, get_logger
from infeng_core.api import formats as formats_api
from infeng_peers.environment import Environment
from infeng_peers.known import Commands, Peer

VERSION = 2  # part of the cache key; raised when an exporter's output changes


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
        return source
    _export(peer, destination, kind, lambda folder: peer.export_commands(tools, source, folder, kind), peer.MODEL_FILE)
    return destination / peer.MODEL_FILE


def _stored(format: str) -> str:
    """Return the name of the format whose bytes ``format`` stores."""
    try:
        return formats_api.builtin_format(format).stored
    except UsageError:  # a plugin's format, or an unknown one
        return format


def peer_adapter(peer: Peer, adapter: Path, base: Path) -> Path:
    """Return a PEFT directory as ``peer`` reads it, exported on the first call; a GGUF stays unchanged.

    base: the Hugging Face directory or the GGUF of its base. Raises UsageError for a peer without adapters or one that
    reads no GGUF, and PeerError if the export fails.
    """
    if not peer.TAKES_ADAPTERS:
        raise UsageError(peer.NAME, "requests with different adapters cannot be put to it", "leave this peer out")
    if is_gguf(adapter):
        if not peer.READS_GGUF:
            remedy = "give a PEFT directory, or leave this peer out"
            raise UsageError(peer.NAME, f"it reads no GGUF, and {adapter.name} is one", remedy)
        return adapter
    destination = _place(peer, adapter, f"of-{_digest(base)}")
    if not peer.adapter_commands(adapter, base, destination):
        return adapter
    what = f"adapter {adapter.name}"
    _export(peer, destination, what, lambda folder: peer.adapter_commands(adapter, base, folder), peer.ADAPTER_FILE)
    return destination / peer.ADAPTER_FILE


def _export(peer: Peer, destination: Path, kind: str, commands: Callable[[Path], Commands], file: str) -> None:
    """Make ``destination`` by ``commands``, which write ``file``, if it is missing."""
    environment = Environment(peer)

    def fill(folder: Path) -> None:
        versions = environment.require()["versions"]
        get_logger(__name__).info(f"exporting {destination.name} for {peer.NAME}", kind=kind, versions=len(versions))
        with environment.log.open("a", encoding="utf-8") as output:
            offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
            for command in commands(folder):
                environment.execute(command, f"the export to {kind}", output, offline)
        if not (folder / file).exists():
            raise PeerError(peer.NAME, f"the export to {kind} wrote nothing", f"see {environment.log}")

    made_once(destination, file, fill)


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
    return digest(facts)
