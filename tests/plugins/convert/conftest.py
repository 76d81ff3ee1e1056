"""Small models, and an environment without the settings of whoever runs the tests."""

import os
from pathlib import Path

import pytest
import tiny_model
from format_parts import bases, cache, make_model, stories260k, third_party, write_model

__all__ = ["bases", "cache", "make_model", "stories260k", "third_party", "write_model"]


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
