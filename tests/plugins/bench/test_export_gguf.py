"""The GGUF that this wheel writes, read back by the library of its makers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench import peers
from infeng_bench.models import synthetic
from infeng_bench.peers import export_gguf as exporter
from infeng_bench.peers.environment import Environment
from safetensors.numpy import load_file, save_file

NO_GGUF = "reads the file back with the package gguf, which is not installed here"
LLAMA = Environment(peers.peer("llama_cpp"))
LLAMA_PYTHON, LLAMA_MISSING = LLAMA.python, LLAMA.missing()  # of the user's cache: the tests have one of their own
PERMUTED = {"q_proj": 4, "k_proj": 2}  # heads of the tiny model


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo what llama.cpp wants: from neighbouring pairs back to halves."""
    width = weight.shape[0] // heads
    order = [head * width + 2 * i + half for head in range(heads) for half in (0, 1) for i in range(width // 2)]
    return weight[order]


def export(model: Path, out: Path, kind: str = "f16", python: str = sys.executable) -> Any:
    """Run the exporter as a program."""
    command = [python, "-P", exporter.__file__, str(model), str(out), "--type", kind]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tiny_config: Path) -> Path:
    return synthetic.hf_directory(tiny_config)


def test_an_f16_export_holds_the_same_values_under_llama_cpps_names(source: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    out = tmp_path / "model.gguf"
    assert export(source, out).returncode == 0
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    plain = load_file(source / "model.safetensors")
    assert len(written) == len(plain)
    for name, values in plain.items():
        found = written[exporter.gguf_name(name)].data.astype(np.float32).reshape(values.shape)
        heads = PERMUTED.get(name.split(".")[-2])
        assert np.array_equal(halves(found, heads) if heads else found, values.astype(np.float32)), name


def test_the_header_agrees_with_the_config(source: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    out = tmp_path / "model.gguf"
    assert export(source, out).returncode == 0
    fields = gguf.GGUFReader(out).fields
    config = json.loads((source / "config.json").read_text())
    assert fields["llama.embedding_length"].contents() == config["hidden_size"]
    assert fields["llama.attention.head_count_kv"].contents() == config["num_key_value_heads"]
    assert fields["llama.block_count"].contents() == config["num_hidden_layers"]
    assert len(fields["tokenizer.ggml.tokens"].contents()) == config["vocab_size"]
    assert len(set(fields["tokenizer.ggml.tokens"].contents())) == config["vocab_size"]


def test_bfloat16_and_shards_are_read(source: Path, tmp_path: Path) -> None:
    plain = load_file(source / "model.safetensors")
    names = sorted(plain)
    save_file({name: plain[name] for name in names[:5]}, tmp_path / "model-00001-of-00002.safetensors")
    bits = {name: (plain[name].astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for name in names[5:]}
    save_file(bits, tmp_path / "model-00002-of-00002.safetensors")
    second = tmp_path / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes().replace(b'"U16"', b'"BF16"').replace(b"{", b"{", 1))
    length = int.from_bytes(second.read_bytes()[:8], "little") + len(bits)  # one character more per tensor
    second.write_bytes(length.to_bytes(8, "little") + second.read_bytes()[8:])
    found = dict(exporter.read_safetensors(tmp_path))
    assert sorted(found) == names
    for name in names[5:]:
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], (bits[name].astype(np.uint32) << 16).view(np.float32))


def test_llama_3_scaling_becomes_a_divisor_per_frequency() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = exporter.rope_factors({"rope_theta": 500000.0, "rope_scaling": scaling}, 64)
    assert factors is not None
    assert factors.shape == (32,)
    assert np.all(factors[:10] == 1)  # short waves stay
    assert np.all(factors[-10:] == 32)  # long ones are stretched
    assert np.all(np.diff(factors) >= 0)
    assert exporter.rope_factors({"rope_theta": 10000.0}, 64) is None
    with pytest.raises(ValueError, match="'yarn' cannot be exported"):
        exporter.rope_factors({"rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn"}}, 64)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "visual.merger.weight", "lm_head"])
def test_a_tensor_outside_the_llama_family_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not of a Llama"):
        exporter.gguf_name(name)


def test_a_directory_without_weights_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason=NO_GGUF)
    shutil.copy(Path(__file__), tmp_path / "config.json")
    result = export(tmp_path, tmp_path / "out.gguf")
    assert result.returncode == 1
    assert result.stderr.startswith("gguf: error: ")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("q4_0", 1 / 14), ("q8_0", 1 / 250)])
def test_llama_cpp_quantizes_close_to_the_values(source: Path, tmp_path: Path, kind: str, tolerance: float) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    if LLAMA_MISSING:
        pytest.skip("llama.cpp's own quantizer is in the peer llama_cpp, which is not installed here")
    out = tmp_path / "model.gguf"
    result = export(source, out, kind, str(LLAMA_PYTHON))
    assert result.returncode == 0, result.stderr
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(out).tensors}
    values = load_file(source / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].astype(np.float32)
    tensor = written["blk.1.ffn_down.weight"]
    assert tensor.tensor_type.name == kind.upper()
    found = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    largest = np.abs(values).reshape(-1, 32).max(1, keepdims=True)
    assert np.all(np.abs(found - values).reshape(-1, 32) <= largest * (2 * tolerance) + 1e-6)


def test_rotary_settings_are_found_where_transformers_5_writes_them(tmp_path: Path) -> None:
    parameters = {"rope_theta": 5e5, "rope_type": "default"}
    (tmp_path / "config.json").write_text(json.dumps({"rope_parameters": parameters, "hidden_size": 8}))
    config = exporter.read_config(tmp_path)
    assert config["rope_theta"] == 5e5
    assert exporter.rope_factors(config, 8) is None
