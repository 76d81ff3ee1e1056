"""Adapters of rank 16 on all linears of TinyLlama-1.1B's shapes, int8 storage, from files in the page cache."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from adapter_calls import convert_adapter, load_adapter
from infeng_bench.models import adapters

from infeng_core.formats.artifacts.reader import read_native
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.tensors import LoadedModel


@pytest.fixture(scope="module")
def model(tinyllama: Path) -> LoadedModel:
    return read_native(tinyllama, builtin_format)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("source", ["peft-f32", "peft-bf16", "artifact"])
def test_load_adapter(benchmark: Any, model: LoadedModel, source: str, dora: bool, tmp_path: Path) -> None:
    """Read, check, pack (PEFT) or compare the checksum (artifact); into memory of its own each time."""
    directory = adapters.peft_directory(
        "tinyllama-1.1b", 16, dora=dora, dtype="bf16" if source == "artifact" else source[5:]
    )
    if source == "artifact":
        directory = convert_adapter(directory, tmp_path / "artifact", model, "int8").path
    adapter = benchmark(load_adapter, directory, model, "int8")
    benchmark.extra_info["nbytes"] = adapter.nbytes
    shutil.rmtree(tmp_path)
