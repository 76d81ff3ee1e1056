"""The random model that benchmarks share, made on the first run and kept in the user's cache."""

from pathlib import Path

import pytest
from infeng_bench.models import synthetic


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run() -> None:
    """Benchmarks alone use the user's cache."""


@pytest.fixture(scope="session")
def tinyllama() -> Path:
    """Return TinyLlama-1.1B's shapes at int4-g64 (embedding int8-row) as an engine-native directory."""
    return synthetic.native_directory("tinyllama-1.1b", "int4-g64")
