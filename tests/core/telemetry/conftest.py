"""A tiny engine to measure."""

from __future__ import annotations

from typing import Any

import pytest
from engine_parts import MakeEngine

from infeng_core.engine import Engine


@pytest.fixture
def make_engine(make_engine: MakeEngine) -> MakeEngine:
    """Return ``make(section__key=value, ...)``: engines of two threads."""

    def make(**settings: Any) -> Engine:
        return make_engine(**{"threads__count": 2, **settings})

    return make
