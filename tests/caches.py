"""Where tests keep what an engine learns of kernels and converts, when they need no cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared(factory: pytest.TempPathFactory, name: str = "run") -> Path:
    """Return the cache of this run, one for all processes that it is spread over: kernels are checked once for all.

    What models of many sizes teach makes a cache slow to read: tests that start processes have one with another name.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"cache-of-the-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
