"""The two kernel libraries of this wheel: for a GPU, and for a GPU that g++ emulates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infeng_core.api import UsageError

GPU = "cuda"
EMULATED = "cuda-emulated"
VARIABLE = "CUDA_DEVICE_OF_INFENG"
"""Tells the library, here and in child processes, which GPU to use."""


def path_of(library: str) -> Path:
    """Return the shared object of a library, which may be missing."""
    return Path(__file__).parent / f"libinfeng_{library.replace('-', '_')}.so"


def library_of(settings: Mapping[str, Any]) -> str:
    """Return the library that the settings ask for; raises UsageError as ``wanted`` does."""
    return EMULATED if wanted(settings) == EMULATED else GPU


def wanted(settings: Mapping[str, Any]) -> str:
    """Return the number of a GPU, or ``EMULATED``; raises UsageError for another value of ``cuda.device``."""
    value = str(settings["device"])
    if value == "auto":
        return "0"
    if value == "emulated":
        return EMULATED
    if value.isdigit() and len(value) < 4:
        return value
    raise UsageError(f"cuda.device: {value}", "not a GPU", "set it to auto, emulated or the number of a GPU")
