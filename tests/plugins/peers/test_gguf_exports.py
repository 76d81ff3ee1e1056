"""Models and adapters for llama.cpp: the commands that export them, and the quantizer's files."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.models import adapters, synthetic
from infeng_peers import known
from infeng_peers.environment import Environment
from safetensors.numpy import load_file

NO_GGUF = "reads the file back with the package gguf, which is not installed here"
PEER = known.peer("llama_cpp")
LLAMA_CPP = Environment(PEER)
TOOLS, MISSING = LLAMA_CPP.tools, LLAMA_CPP.missing()  # of the user's cache: the tests have one of their own


@pytest.fixture(scope="module")
def base(tiny_config: Path) -> Path:
    return synthetic.hf_directory(tiny_config)


def run(*commands: list[str]) -> Any:
    """Run commands up to the first that fails; return the last result."""
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            break
    return result


def test_an_f16_export_holds_the_values_of_the_directory(base: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    assert run(*PEER.export_commands(tmp_path, base, tmp_path, "f16")).returncode == 0
    written = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / PEER.MODEL_FILE).tensors}
    plain = load_file(base / "model.safetensors")
    assert len(written) == len(plain)
    assert np.array_equal(written["blk.1.ffn_down.weight"], plain["model.layers.1.mlp.down_proj.weight"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("q4_0", 1 / 14), ("q8_0", 1 / 250)])
def test_llama_cpp_quantizes_close_to_the_values(base: Path, tmp_path: Path, kind: str, tolerance: float) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    if MISSING:
        pytest.skip("llama.cpp's own quantizer is in the peer llama_cpp, which is not installed here")
    result = run(*PEER.export_commands(TOOLS, base, tmp_path, kind))
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [PEER.MODEL_FILE], "the f16 file was deleted"
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / PEER.MODEL_FILE).tensors}
    values = load_file(base / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].astype(np.float32)
    tensor = written["blk.1.ffn_down.weight"]
    assert tensor.tensor_type.name == kind.upper()
    found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    largest = np.abs(values).reshape(-1, 32).max(1, keepdims=True)
    assert np.all(np.abs(found - values).reshape(-1, 32) <= largest * (2 * tolerance) + 1e-6)


def test_an_adapter_is_exported_over_its_base(base: Path, tiny_config: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    adapter = adapters.peft_directory(tiny_config, 6, "all", 1)
    result = run(*PEER.adapter_commands(adapter, base, tmp_path))
    assert result.returncode == 0, result.stderr
    reader = gguf.GGUFReader(tmp_path / PEER.ADAPTER_FILE)
    assert reader.fields["adapter.lora.alpha"].contents() == 12
    assert len(reader.tensors) == 2 * 2 * 7
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F16"}


def test_an_adapter_that_llama_cpp_does_not_apply_is_refused(base: Path, tiny_config: Path, tmp_path: Path) -> None:
    adapter = adapters.peft_directory(tiny_config, 6, "all", 1, dora=True)
    result = run(*PEER.adapter_commands(adapter, base, tmp_path))
    assert (result.returncode, result.stderr.partition(": /")[0]) == (1, "gguf: error")
    assert "plain LoRA only" in result.stderr
