"""Tiny engines, plugins made for a test, and an environment without the user's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_fixtures import make_engine, quiet_environment, shared_cache, tiny
from workshop import Compiler, Workshop

__all__ = ["compile_library", "known", "make_engine", "quiet_environment", "shared_cache", "tiny", "workshop"]


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


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """Return ``compile(source, NAME="value", ...)``: a shared object, built once per set of macros."""
    return Compiler(tmp_path_factory.mktemp("libraries"))


@pytest.fixture
def workshop(tmp_path: Path, compile_library: Compiler) -> Workshop:
    """A workshop in the test's folder."""
    return Workshop(tmp_path, compile_library)
