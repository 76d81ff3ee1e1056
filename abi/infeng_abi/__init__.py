"""The INF-ENG kernel ABI and its SDK: the folder of their headers and the compiler flags that they need."""

from pathlib import Path

__version__ = "0.11.0"

SDK_VERSION = "0.1"
"""Of the headers beside ``infeng/abi.h``, which may change while the ABI does not (``infeng/sdk.h``)."""

CFLAGS = ("-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden")
"""Flags that the numerics contract requires."""


def include_dir() -> Path:
    """Return the folder to put on a compiler's include path, so that `#include <infeng/abi.h>` works."""
    return Path(__file__).parent / "include"


def pkg_config_dir() -> Path:
    """Return the folder to put on PKG_CONFIG_PATH, so that `pkg-config --cflags infeng-abi` works."""
    return Path(__file__).parent / "pkgconfig"
