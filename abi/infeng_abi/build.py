"""A build backend (PEP 517) for wheels of kernels: meson-python with the wheel tag ``py3-none-<platform>``.

A kernel library does not use Python, so one wheel serves every Python 3, but meson-python takes a library in a package
for an extension module and tags the wheel for one version of Python.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from mesonpy import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from mesonpy import build_wheel as build_tagged_wheel

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def build_wheel(
    wheel_directory: str, config_settings: dict[Any, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel and return its name."""
    name = build_tagged_wheel(wheel_directory, config_settings, metadata_directory)
    retag = [sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag=py3", "--abi-tag=none", name]
    done = subprocess.run(retag, cwd=wheel_directory, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()[-1]
