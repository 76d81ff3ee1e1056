"""The shared cache of tests for checked kernels and converted models."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared(factory: pytest.TempPathFactory, name: str = "run") -> Path:
    """Return the cache of this test run, which all its processes share, so that kernels are checked once.

    Entries for models of many sizes make a cache slow to read, so tests that start processes use another ``name``.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"cache-of-the-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
