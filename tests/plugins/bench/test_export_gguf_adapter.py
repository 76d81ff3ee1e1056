"""Adapters for llama.cpp: the file, read back by the library of its makers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.models import adapters, synthetic
from infeng_bench.peers import export_gguf as exporter
from infeng_bench.peers import export_gguf_adapter
from safetensors.numpy import save_file

NO_GGUF = "reads the file back with the package gguf, which is not installed here"
PREFIX = "base_model.model."


def export(adapter: Path, base: Path, out: Path, kind: str = "f32") -> Any:
    """Run the exporter as a program."""
    command = [sys.executable, "-P", export_gguf_adapter.__file__, str(adapter), str(base), str(out), "--type", kind]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def changed(source: Path, folder: Path, **settings: Any) -> Path:
    """Return a copy of an adapter with other settings."""
    folder.mkdir()
    config = json.loads((source / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    (folder / "adapter_model.safetensors").write_bytes((source / "adapter_model.safetensors").read_bytes())
    return folder


def differences(adapter: Path) -> dict[str, np.ndarray]:
    """Return what an adapter adds to each weight: scaling * B A."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    found = {}
    for name, both in export_gguf_adapter.pairs(adapter).items():
        rank = both["A"].shape[0]
        found[name] = export_gguf_adapter.scaling(config, name, rank) * (both["B"].astype(np.float64) @ both["A"])
    return found


@pytest.fixture(scope="module")
def base(tiny_config: Path) -> Path:
    return synthetic.hf_directory(tiny_config)


@pytest.fixture(scope="module")
def adapter(tiny_config: Path) -> Path:
    return adapters.peft_directory(tiny_config, 6, "all", 1, dtype="f32")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True, "lora_alpha": 5},
        {"alpha_pattern": {"q_proj": 3, r"layers\.1\.mlp\.up_proj": 7}, "lora_alpha": 16},
    ],
)
def test_the_file_adds_the_same_delta_to_each_weight_as_peft(
    base: Path, adapter: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    gguf = pytest.importorskip("gguf", reason=NO_GGUF)
    out = tmp_path / "adapter.gguf"
    source = changed(adapter, tmp_path / "adapter", **settings)
    assert export(source, base, out).returncode == 0
    reader = gguf.GGUFReader(out)
    fields = reader.fields
    assert fields["general.type"].contents() == "adapter"
    assert fields["adapter.type"].contents() == "lora"
    assert fields["general.architecture"].contents() == "llama"
    alpha = fields["adapter.lora.alpha"].contents()
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    expected = differences(source)
    assert len(tensors) == 2 * len(expected) == 2 * 2 * 7
    for name, wanted in expected.items():
        a, b = (tensors[f"{exporter.gguf_name(name)}.lora_{side}"] for side in "ab")
        found = alpha / a.shape[0] * (b.astype(np.float64) @ a)  # as llama.cpp computes it
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads:
            wanted = exporter.interleave_rotary(wanted, heads)
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-7), name


def test_patterns_match_as_in_peft() -> None:
    config = {"lora_alpha": 8, "alpha_pattern": {"q_proj": 2, r"layers\.0\..*": 4}}
    assert export_gguf_adapter.scaling(config, "model.layers.1.self_attn.q_proj.weight", 4) == 0.5
    assert export_gguf_adapter.scaling(config, "model.layers.0.self_attn.v_proj.weight", 4) == 1.0
    assert export_gguf_adapter.scaling(config, "model.layers.1.self_attn.xq_proj.weight", 4) == 2.0
    assert export_gguf_adapter.scaling({"use_rslora": True, "lora_alpha": 8}, "x.weight", 16) == 2.0


@pytest.mark.parametrize(
    ("settings", "tensors", "text"),
    [
        ({"use_dora": True}, {}, "takes plain LoRA only"),
        ({"fan_in_fan_out": True}, {}, "takes plain LoRA only"),
        ({"peft_type": "IA3"}, {}, "takes plain LoRA only"),
        ({}, {"x.lora_magnitude_vector": (4,)}, "pairs of A and B of linears only"),
        ({}, {"model.embed_tokens.lora_embedding_A": (4, 4)}, "pairs of A and B of linears only"),
        ({}, {"model.layers.0.self_attn.q_proj.lora_A.weight": (4, 64)}, "do not fit together"),
        ({}, {"a.lora_A.weight": (4, 64), "a.lora_B.weight": (64, 5)}, "do not fit together"),
        ({}, {"a.lora_A.weight": (4, 64), "a.lora_B.weight": (64, 4)}, "is not of a Llama"),
    ],
)
def test_adapters_that_llama_cpp_does_not_support_are_refused(
    base: Path, adapter: Path, tmp_path: Path, settings: dict[str, Any], tensors: dict[str, Any], text: str
) -> None:
    pytest.importorskip("gguf", reason=NO_GGUF)
    source = changed(adapter, tmp_path / "adapter", **settings)
    if tensors:
        values = {PREFIX + name: np.ones(shape, np.float32) for name, shape in tensors.items()}
        save_file(values, source / "adapter_model.safetensors")
    result = export(source, base, tmp_path / "out.gguf")
    assert result.returncode == 1
    assert result.stderr.startswith("gguf: error: ") and text in result.stderr
