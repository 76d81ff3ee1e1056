"""Fixtures of the tests of infeng-cuda: the emulated GPU, and a real one."""

from __future__ import annotations

import os

import pytest
from infeng_cuda.backend import opened
from infeng_cuda.libraries import EMULATED, GPU, path_of
from shared_fixtures import make_engine, quiet_environment, shared_cache, tiny

from infeng_core import _native as native

__all__ = ["make_engine", "quiet_environment", "shared_cache", "tiny"]


@pytest.fixture(scope="session")
def emulated() -> native.Library:
    return opened(EMULATED)


@pytest.fixture(scope="session")
def gpu() -> native.Library:
    """The library for GPUs; a test that asks for it is skipped where there is no GPU, with the reason."""
    if not path_of(GPU).is_file():
        pytest.skip("infeng-cuda was built without nvcc, so it has no kernels for GPUs")
    library = opened(GPU)
    assert library.device is not None
    if not library.device.name:
        pytest.skip(library.device.why)
    return library


@pytest.fixture
def device() -> str:
    """The value of ``cuda.device`` for engines: emulated, unless a run of the tests on a GPU names it."""
    return os.environ.get("INFENG_TEST_DEVICE", "emulated")
