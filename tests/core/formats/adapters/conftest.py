"""Shared parts of tests of adapter files."""

from __future__ import annotations

import pytest

from infeng_core.formats.adapters import snapshot


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process writes these files, so files are read right after they were written."""
    monkeypatch.setattr(snapshot, "PAUSE", 0.0)
