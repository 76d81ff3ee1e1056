"""Tiny engines, in a cache that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import caches
import pytest
import tiny_model
from engine_parts import MakeEngine

from infeng_core.engine import Engine


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default tiny model."""
    return tiny_model.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A cache in which kernels are checked and models converted once."""
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))


@pytest.fixture
def make_engine(tiny: Path) -> Iterator[MakeEngine]:
    """Return ``make(model=tiny, section__key=value, ...)``; the engines are closed after the test."""
    engines: list[Engine] = []

    def make(model: Path = tiny, **settings: Any) -> Engine:
        overrides = {"threads.count": 1, **{name.replace("__", "."): value for name, value in settings.items()}}
        engines.append(Engine(model, overrides=overrides))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
