"""Kernels are tried with a separate cache for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import aware

from infeng_core.machine.cpu import Cpu, detect


@pytest.fixture
def cache(tmp_path: Path, known: Path) -> Path:
    """A cache of the test's own."""
    return aware(tmp_path / "cache", known)


@pytest.fixture
def cpu() -> Cpu:
    """This processor."""
    return detect({})
