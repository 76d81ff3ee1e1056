"""What tests of adapter files share."""

from __future__ import annotations

import pytest

from infeng_core.formats.adapters import snapshot


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else writes these files: what was just written is read at once."""
    monkeypatch.setattr(snapshot, "PAUSE", 0.0)
