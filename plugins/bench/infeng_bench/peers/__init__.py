"""Other engines to compare with. A peer is one file here, named in ``NAMES``; ``llama_cpp.py`` is the example.

The file is read twice. This project takes ``ABOUT``, ``REQUIREMENTS`` (pinned versions that are known to work),
``PIP_OPTIONS``, ``UNWANTED`` (removed after the installation), ``IMPORTS`` (must succeed at its end),
``NEEDS_COMPILER``, ``FORMATS``, ``READS_GGUF``, ``OPTIONS`` with their defaults, ``CHOICES`` of those that take words,
``build_environment``, ``export_commands`` and ``model_path``, and where requests with adapters can be put to it
``adapter_commands`` and ``adapter_path``; the peer's own interpreter (``serve.py``) calls ``open_model``. So whatever
is not in the standard library is imported inside functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from infeng_core.api import InfengError, UsageError, unknown_key_remedy

OURS = "infeng"  # what results call this engine
NAMES = ("llama_cpp", "openvino", "transformers")  # every known peer


class PeerError(InfengError):
    """Another engine cannot be installed, started or measured. The text names it and the log of what it said."""


class Peer(Protocol):
    """The face of a peer's file."""

    NAME: str
    ABOUT: str
    REQUIREMENTS: tuple[str, ...]
    PIP_OPTIONS: tuple[str, ...]
    UNWANTED: tuple[str, ...]
    IMPORTS: tuple[str, ...]
    NEEDS_COMPILER: bool
    FORMATS: Mapping[str, str]
    READS_GGUF: bool
    OPTIONS: Mapping[str, str]
    CHOICES: Mapping[str, tuple[str, ...]]
    __file__: str

    def build_environment(self, features: Collection[str], gcc: int | None) -> dict[str, str]:
        """Return environment variables for pip. gcc: major version of the compiler, None if it is not GCC."""

    def export_commands(self, tools: Path, source: Path, folder: Path, kind: str) -> list[list[str]]:
        """Return commands that turn the Hugging Face directory ``source`` into ``folder``; none if it reads that.

        tools: the environment's bin folder. kind: a value of FORMATS.
        """

    def model_path(self, folder: Path) -> Path:
        """Return what ``open_model`` loads: of ``folder``, or of the source where nothing is exported."""


class AdapterPeer(Peer, Protocol):
    """The face of a peer that serves requests with adapters."""

    def adapter_commands(self, tools: Path, adapter: Path, base: Path, folder: Path) -> list[list[str]]:
        """Return commands that turn the PEFT directory ``adapter`` of ``base`` into ``folder``, as above."""

    def adapter_path(self, folder: Path) -> Path:
        """Return what ``load_adapter`` takes: of ``folder``, or of the PEFT directory."""


def peer(name: str) -> Peer:
    """Return a known peer; raises UsageError with what was probably meant."""
    if name not in NAMES:
        raise UsageError(f"peer {name!r}", "unknown", unknown_key_remedy(name, NAMES))
    module: Any = importlib.import_module(f"infeng_bench.peers.{name}")
    return module  # type: ignore[no-any-return]
