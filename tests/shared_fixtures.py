"""Fixtures of several folders: an environment without the user's settings, caches, tiny engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import caches
import pytest
import tiny_model
from engine_parts import MakeEngine

from infeng_core.engine import Engine


@pytest.fixture(name="cache", scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that tests share: kernels are checked and models converted once."""
    return caches.shared(tmp_path_factory)


@pytest.fixture(name="cache")
def own_cache(tmp_path: Path) -> Path:
    """A cache of the test's own."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing of the user's settings, and ``cache``. ``INFENG_TEST_DEVICE`` has all engines compute on a GPU.

    It is a value of ``cuda.device``: ``emulated``, or the number of a GPU.
    """
    kept = ("INFENG_TEST_DATA", "INFENG_TEST_DEVICE")
    for name in [name for name in os.environ if name.startswith("INFENG_") and name not in kept]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(cache))
    if device := os.environ.get("INFENG_TEST_DEVICE"):
        monkeypatch.setenv("INFENG_BACKEND_USE", "cuda")
        monkeypatch.setenv("INFENG_CUDA_DEVICE", device)


@pytest.fixture(scope="session")
def third_party() -> Path:
    """The folder of third-party models and texts, which is no part of the project."""
    folder = os.environ.get("INFENG_TEST_DATA")
    if not folder:
        pytest.skip("INFENG_TEST_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default tiny model."""
    return tiny_model.write(tmp_path_factory.mktemp("tiny"))


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
