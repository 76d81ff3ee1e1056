"""The random model that benchmarks share, made on the first run and kept under .bench/."""

import importlib.util
from pathlib import Path

import pytest

from infeng_core.formats import FormatChoice, convert

BENCH = Path(__file__).parents[2] / ".bench"


@pytest.fixture(scope="session")
def tinyllama() -> Path:
    """Return TinyLlama-1.1B's shapes at int4-g64 (embedding int8-row) as an engine-native directory."""
    source = BENCH / "tinyllama-1.1b"
    if not (source / "config.json").exists():
        spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
        assert spec is not None
        assert spec.loader is not None
        synthetic = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(synthetic)
        synthetic.write_model("tinyllama-1.1b", source)
    choice = FormatChoice("int4-g64", {"embed": "int8-row"})
    return convert(source, BENCH / "tinyllama-1.1b-int4-g64", choice, force=False).path
