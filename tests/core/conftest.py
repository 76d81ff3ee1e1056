"""Tiny engines, plugins made for a test, and an environment without the user's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import caches
import pytest
import tiny_model
from engine_parts import MakeEngine
from workshop import Compiler, Workshop

from infeng_core.engine import Engine


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that tests share: kernels are checked and models converted once. A folder may have one of its own."""
    return caches.shared(tmp_path_factory)


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with what is found of the installed libraries: few tests are about those."""
    folder = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(folder))
        selector = Workshop(folder, Compiler(folder)).selector()
        for problem in (Workshop.embed, Workshop.rmsnorm, Workshop.gather):
            selector.choose(problem)
        selector.close()
    return folder


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing of the user's settings, and ``cache``."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(cache))


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


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Return ``compile(source, NAME="value", ...)``: a shared object, built once per set of macros."""
    return Compiler(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def workshop(tmp_path: Path, compile_library: Compiler) -> Workshop:
    """A workshop in the test's folder."""
    return Workshop(tmp_path, compile_library)
