"""Start-up: TinyLlama-1.1B's shapes from an engine-native directory, int4-g64, with the files in the page cache."""

from pathlib import Path
from typing import Any

import pytest

from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.quant import builtin_format


@pytest.mark.parametrize(("load", "verify"), [("copy", True), ("copy", False), ("mmap", False)])
def test_load(benchmark: Any, tinyllama: Path, load: Any, verify: bool) -> None:
    """615 MB; a new arena each time."""
    model = benchmark(read_native, tinyllama, builtin_format, load=load, verify=verify)
    benchmark.extra_info["nbytes"] = model.nbytes
