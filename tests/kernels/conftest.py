"""Fixtures of the tests of kernels."""

from pathlib import Path

import pytest
from kernels.driver import MAIN, compile_to


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_to(tmp_path_factory.mktemp("driver") / "conformance", "c++", "-std=c++20", "-O1", MAIN)
