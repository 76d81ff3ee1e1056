"""What tests of PEFT adapters share: bases, a cache of each test's own, and files that are read at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from adapter_calls import bases_in
from shared_fixtures import own_cache, quiet_environment, third_party

from infeng_core.formats.adapters import snapshot
from infeng_core.formats.tensors import LoadedModel

__all__ = ["bases", "no_pause", "own_cache", "quiet_environment", "third_party"]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else writes these files: what was just written is read at once."""
    monkeypatch.setattr(snapshot, "PAUSE", 0.0)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedModel]:
    """The models under the goldens' adapters: ``bases(case, format)``."""
    return bases_in(tmp_path_factory.mktemp("bases"))
