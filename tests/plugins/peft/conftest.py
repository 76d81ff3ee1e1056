"""What tests of PEFT adapters share: bases, a cache of each test's own, and files that are read at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from adapter_calls import bases_in

from infeng_core.formats.adapters import snapshot
from infeng_core.formats.tensors import LoadedModel


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of the test's own."""
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing of the user's settings, and ``cache``."""
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(cache))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else writes these files: what was just written is read at once."""
    monkeypatch.setattr(snapshot, "PAUSE", 0.0)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """The models under the goldens' adapters: ``bases(case, format)``."""
    return bases_in(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="session")
def third_party() -> Path:
    """The folder of third-party models and texts, which is no part of the project."""
    folder = os.environ.get("INFENG_TEST_DATA")
    if not folder:
        pytest.skip("INFENG_TEST_DATA is not set")
    return Path(folder)
