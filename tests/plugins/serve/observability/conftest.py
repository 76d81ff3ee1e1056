"""An engine with the demo's model and adapters, and records as a server would make them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import infeng_demo
import pytest
from infeng_serve.observers import Record

from infeng_core.api import Engine

DEMO = Path(infeng_demo.__file__).parent
ADAPTERS = {"bard": DEMO / "adapters/shakespeare", "coder": DEMO / "adapters/python"}

MakeRecord = Callable[..., Record]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The demo's model with two adapters."""
    overrides = {"threads.count": 1, "kv_cache.memory": "8MB"}
    with Engine(DEMO / "model", adapters=ADAPTERS, overrides=overrides) as engine:
        yield engine


@pytest.fixture
def make_record() -> MakeRecord:
    """Return ``make(field=value, ...)``: a record of a call that has come just now."""

    def make(**fields: Any) -> Record:
        given = {"id": "r1", "route": "/v1/completions", "tenant": "acme", "model": "demo", "wall": time.time()}
        return Record(**{**given, "arrived": 100.0, "submitted": 100.1, **fields})

    return make


@pytest.fixture
def finished(make_record: MakeRecord) -> MakeRecord:
    """Return ``make(field=value, ...)``: a record of a call that has got 5 tokens in 2.5 s."""

    def make(**fields: Any) -> Record:
        times = {"started": 100.5, "first_token": 101.5, "last_token": 102.3, "ended": 102.5}
        known = {"prompt_tokens": 40, "cached_tokens": 16, "completion_tokens": 5, "max_tokens": 64}
        return make_record(**{**times, **known, "status": 200, "finish_reason": "stop", **fields})

    return make
