"""Kernels are tried with a cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from infeng_core.machine.cpu import Cpu, detect


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of the test's own."""
    return tmp_path / "cache"


@pytest.fixture
def cpu() -> Cpu:
    """This processor."""
    return detect({})
