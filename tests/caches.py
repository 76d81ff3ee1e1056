"""Where tests keep what an engine learns of kernels and converts, when they need no cache of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared(factory: pytest.TempPathFactory) -> Path:
    """Return the cache of this run, one for all processes that it is spread over: kernels are checked once for all."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache-of-the-run"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
