"""One cache for all tests of commands, whose engines check kernels once."""

from pathlib import Path

import caches
import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this folder share."""
    return caches.shared(tmp_path_factory)
