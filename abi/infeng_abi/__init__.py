"""The INF-ENG kernel ABI: where its headers are and which flags they need."""

from pathlib import Path

__version__ = "0.10.0"

CFLAGS = ("-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden")
"""Flags without which a kernel cannot keep the numerics contract."""


def include_dir() -> Path:
    """Return the folder to put on a compiler's include path, so that `#include <infeng/abi.h>` works."""
    return Path(__file__).parent / "include"


def pkg_config_dir() -> Path:
    """Return the folder to put on PKG_CONFIG_PATH, so that `pkg-config --cflags infeng-abi` works."""
    return Path(__file__).parent / "pkgconfig"
