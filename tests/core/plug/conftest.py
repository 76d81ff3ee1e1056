"""Plugins are looked for with a cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of the test's own."""
    return tmp_path / "cache"
