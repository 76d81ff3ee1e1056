"""Plugins are discovered with a separate cache for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import aware


@pytest.fixture
def cache(tmp_path: Path, known: Path) -> Path:
    """A cache of the test's own."""
    return aware(tmp_path / "cache", known)
