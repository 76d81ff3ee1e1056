"""A tiny engine to measure."""

from __future__ import annotations

from typing import Any

import pytest
from engine_parts import MakeEngine
from shared_fixtures import make_engine as make_any_engine
from shared_fixtures import quiet_environment, shared_cache, tiny

from infeng_core.engine import Engine

__all__ = ["make_any_engine", "make_engine", "quiet_environment", "shared_cache", "tiny"]


@pytest.fixture
def make_engine(make_any_engine: MakeEngine) -> MakeEngine:  # the fixture of this name
    """Return ``make(section__key=value, ...)``: engines of two threads."""

    def make(**settings: Any) -> Engine:
        return make_any_engine(**{"threads__count": 2, **settings})

    return make
