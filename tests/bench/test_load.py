"""Start-up: TinyLlama-1.1B's shapes from an engine-native directory, int4-g64, with the files in the page cache."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from infeng_core.formats import FormatChoice, convert
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.read import read_native

BENCH = Path(__file__).parents[2] / ".bench"


@pytest.fixture(scope="module")
def directory() -> Path:
    """A converted random model, made on the first run and kept."""
    source, converted = BENCH / "tinyllama-1.1b", BENCH / "tinyllama-1.1b-int4-g64"
    if not (source / "config.json").exists():
        spec = importlib.util.spec_from_file_location("synthetic", Path(__file__).with_name("synthetic.py"))
        assert spec is not None and spec.loader is not None
        synthetic = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(synthetic)
        synthetic.write_model("tinyllama-1.1b", source)
    return convert(source, converted, FormatChoice("int4-g64", {"embed": "int8-row"}), force=False).path


@pytest.mark.parametrize(("load", "verify"), [("copy", True), ("copy", False), ("mmap", False)])
def test_load(benchmark: Any, directory: Path, load: Any, verify: bool) -> None:
    """615 MB; a new arena each time."""
    model = benchmark(read_native, directory, builtin_format, load=load, verify=verify)
    benchmark.extra_info["nbytes"] = model.nbytes
