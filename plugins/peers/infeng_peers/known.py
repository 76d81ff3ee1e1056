"""Other engines to compare with. A peer is one file here, named in ``NAMES``; ``llama_cpp.py`` is the example.

Two interpreters import the file: this project's, which uses the members of ``Peer``, and the peer's (``serve.py``),
which calls ``open_model``. Therefore only the standard library is imported at the top of the file. A file defines
NAME, ABOUT, REQUIREMENTS, IMPORTS, FORMATS, OPTIONS and those other members that differ from the defaults of ``Peer``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from infeng_core.api import UsageError, unknown_key_remedy

NAMES = (  # every known engine
    "llama_cpp",
    "ik_llama_cpp",
    "mistralrs",
    "onnxruntime_genai",
    "openvino",
    "transformers",
    "vllm_cpu",
)
PARTS = ("kt_kernel",)  # peers that implement a part of an engine only; a verb of its own measures each

Commands = list[list[str]]


@dataclass(frozen=True)
class Peer:
    """The members of a peer's file."""

    NAME: str
    ABOUT: str
    REQUIREMENTS: tuple[str, ...]  # pinned versions that are known to work
    IMPORTS: tuple[str, ...]  # must succeed at the end of the installation
    FORMATS: Mapping[str, str]  # our weight format -> the peer's that it is compared with
    OPTIONS: Mapping[str, str]  # settings and their defaults
    CHOICES: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # settings with fixed values
    PIP_OPTIONS: tuple[str, ...] = ()
    UNWANTED: tuple[str, ...] = ()  # packages removed after the installation
    NEEDS_COMPILER: bool = False
    READS_GGUF: bool = False
    TAKES_ADAPTERS: bool = False  # whether the rows of a work can have different adapters
    SERVES: bool = True  # whether requests with adapters can be put to it as they arrive
    MODEL_FILE: str = ""  # the model in the folder of an export, the argument of ``open_model``; "": the folder
    ADAPTER_FILE: str = ""  # likewise of an adapter, for ``load_adapter``
    build_environment: Callable[..., dict[str, str]] = lambda features, gcc: {}
    """``(features, gcc)`` -> environment variables for pip. gcc: major version of GCC, None for another compiler."""
    export_commands: Callable[..., Commands] = lambda tools, source, folder, kind: []
    """``(tools, source, folder, kind)`` -> commands that export the Hugging Face directory ``source`` to ``folder``; []
    if the peer reads it. tools: the environment's bin folder. kind: a value of FORMATS."""
    adapter_commands: Callable[..., Commands] = lambda adapter, base, folder: []
    """``(adapter, base, folder)`` -> commands that export the PEFT directory ``adapter``; [] if the peer reads it.
    base: a Hugging Face directory or a GGUF."""
    path: Path = Path()  # of the file


def peer(name: str) -> Peer:
    """Return a known peer; raises UsageError that suggests the nearest name."""
    if name not in (*NAMES, *PARTS):
        raise UsageError(f"peer {name!r}", "unknown", unknown_key_remedy(name, (*NAMES, *PARTS)))
    module: Any = importlib.import_module(f"infeng_peers.{name}")
    members = {one.name: getattr(module, one.name) for one in fields(Peer) if hasattr(module, one.name)}
    return Peer(**members, path=Path(module.__file__))
