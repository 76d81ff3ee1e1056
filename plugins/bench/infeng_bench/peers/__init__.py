"""Other engines to compare with. A peer is one file here, named in ``NAMES``; ``llama_cpp.py`` is the example.

Two interpreters import the file. This project uses ``ABOUT``, ``REQUIREMENTS`` (pinned versions that are known to
work), ``PIP_OPTIONS``, ``UNWANTED`` (packages removed after the installation), ``IMPORTS`` (must succeed at its end),
``NEEDS_COMPILER``, ``FORMATS``, ``READS_GGUF``, ``OPTIONS`` with their defaults, ``CHOICES`` of options with fixed
values, ``build_environment``, ``export_commands`` and ``model_path``; a peer that serves requests with adapters also
has ``adapter_commands`` and ``adapter_path``. The peer's interpreter (``serve.py``) calls ``open_model``. Therefore
only the standard library is imported at the top of the file.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from infeng_core.api import InfengError, UsageError, unknown_key_remedy

OURS = "infeng"  # this engine's name in results
NAMES = ("llama_cpp", "openvino", "transformers")  # every known peer


class PeerError(InfengError):
    """Another engine cannot be installed, started or measured. The text names it and its log."""


class Peer(Protocol):
    """The members of a peer's file."""

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
        """Return commands that export the Hugging Face directory ``source`` to ``folder``; [] if the peer reads it.

        tools: the environment's bin folder. kind: a value of FORMATS.
        """

    def model_path(self, folder: Path) -> Path:
        """Return the argument of ``open_model`` for an exported ``folder``, or for the source without an export."""


def peer(name: str) -> Peer:
    """Return a known peer; raises UsageError that suggests the nearest name."""
    if name not in NAMES:
        raise UsageError(f"peer {name!r}", "unknown", unknown_key_remedy(name, NAMES))
    module: Any = importlib.import_module(f"infeng_bench.peers.{name}")
    return module  # type: ignore[no-any-return]
