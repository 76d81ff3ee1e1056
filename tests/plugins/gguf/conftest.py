"""One cache for all tests of GGUF files, whose engines check kernels once."""

import os
from pathlib import Path

import caches
import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this folder share."""
    return caches.shared(tmp_path_factory)


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing of the user's settings, and ``cache``."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(cache))


@pytest.fixture(scope="session")
def third_party() -> Path:
    """The folder of third-party models and texts, which is no part of the project."""
    folder = os.environ.get("INFENG_TEST_DATA")
    if not folder:
        pytest.skip("INFENG_TEST_DATA is not set")
    return Path(folder)
