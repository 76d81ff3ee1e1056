"""A model in the form that a peer reads, exported once from the Hugging Face directory and kept in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from infeng_bench.peers import Peer, PeerError
from infeng_bench.peers.environment import Environment
from infeng_core.errors import UsageError
from infeng_core.formats import atomic
from infeng_core.formats.cache import cache_root
from infeng_core.log import get_logger

VERSION = 1
"""Counts changes of what exporters write: other versions do not share a place in the cache."""


def peer_model(peer: Peer, source: Path, format: str) -> Path:
    """Return ``source`` (a Hugging Face directory) as ``peer`` reads it, exported on the first call.

    format: one of ours; the peer's ``FORMATS`` says what stands against it. Raises UsageError where nothing does, and
    PeerError where the export fails.
    """
    kind = peer.FORMATS.get(format)
    if kind is None:
        remedy = f"use one of {', '.join(peer.FORMATS)}"
        raise UsageError(f"{peer.NAME}", f"it has nothing that stands against {format}", remedy)
    environment = Environment(peer)
    destination = _place(peer, source, kind)
    if not peer.export_commands(environment.tools, source, destination, kind):
        return peer.model_path(source)
    log = get_logger(__name__)
    with atomic.locked(destination, waiting=lambda: log.warning(f"{destination}: another process writes it; waiting")):
        if not destination.is_dir():
            record = environment.require()
            log.info(f"exporting {source} for {peer.NAME} as {kind}", versions=len(record["versions"]))
            with atomic.replacing(destination) as folder, environment.log.open("a", encoding="utf-8") as output:
                offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
                for command in peer.export_commands(environment.tools, source, folder, kind):
                    environment.execute(command, f"the export to {kind}", output, offline)
                if not peer.model_path(folder).exists():
                    raise PeerError(peer.NAME, f"the export to {kind} wrote nothing", f"see {environment.log}")
    return peer.model_path(destination)


def _place(peer: Peer, source: Path, kind: str) -> Path:
    """Return where an export lies: beside the source if that is in the benchmarks' own cache."""
    root = cache_root() / "bench"
    suffix = f"{peer.NAME}-{kind}-{VERSION}"
    if source.parent == root:
        return root / f"{source.name}-{suffix}"
    facts = [str(source.resolve())]
    for file in sorted(source.iterdir()):
        status = file.stat()
        facts.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
    return root / f"{source.resolve().name}-{digest}-{suffix}"
