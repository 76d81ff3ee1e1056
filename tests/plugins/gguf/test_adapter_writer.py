"""Adapters written as GGUF: as llama.cpp's converter writes them, and read back as what they were."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_adapter
import tiny_model
from infeng_convert.api import parse_config
from infeng_gguf.adapter import GgufAdapterReader
from infeng_gguf.api import write_gguf_adapter
from infeng_peft.adapter import read_peft
from infeng_peft.api import AdapterWeights, Delta
from numpy.typing import NDArray
from safetensors.numpy import load_file

from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.target_modules import target_modules
from infeng_core.models.config import ModelConfig

SHAPE = tiny_model.Shape()
PREFIX = "base_model.model."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    folder = tiny_model.write(tmp_path_factory.mktemp("base"))
    return parse_config(json.loads((folder / "config.json").read_text()), "config.json")


@pytest.fixture
def peft(tmp_path: Path) -> Path:
    return tiny_adapter.write(tmp_path / "peft", 1)


def tensors_of(path: Path) -> dict[str, NDArray[Any]]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def products(adapter: AdapterWeights) -> dict[str, NDArray[np.float64]]:
    return {name: one.scaling * (one.b.astype(np.float64) @ one.a) for name, one in adapter.deltas.items()}


def test_a_file_has_the_tensors_and_the_alpha_of_llama_cpps_converter(
    base: ModelConfig, peft: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.gguf"
    write_gguf_adapter(read_peft(peft, base), base, out, "f32")
    fields = gguf.GGUFReader(out).fields
    told = {name: fields[name].contents() for name in ("general.architecture", "general.type", "adapter.type")}
    assert told == {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    assert fields["adapter.lora.alpha"].contents() == 8
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 8)
    found = tensors_of(out)
    stored = load_file(peft / "adapter_model.safetensors")
    assert len(found) == len(stored) > 0
    for name, values in stored.items():
        module, _, side = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        heads = {"q_proj": SHAPE.heads, "k_proj": SHAPE.kv_heads}.get(module.rpartition(".")[2])
        wanted = gguf_writing.interleaved(values, heads) if heads and side == "B" else values
        theirs = table.get_name(f"{module}.weight", (".weight",))
        assert np.array_equal(found[f"{theirs}.lora_{side.lower()}"], wanted), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True, "lora_alpha": 5},
        {"alpha_pattern": {"v_proj": 3, r"layers\.1\.mlp\.down_proj": 7}, "lora_alpha": 16},
    ],
)
def test_a_written_adapter_is_read_back_with_the_same_products(
    base: ModelConfig, peft: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = json.loads((peft / "adapter_config.json").read_text())
    (peft / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    adapter = read_peft(peft, base)
    write_gguf_adapter(adapter, base, tmp_path / "a.gguf", "f32")
    found, wanted = products(GgufAdapterReader().read(tmp_path / "a.gguf", base)), products(adapter)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.allclose(found[name], values, rtol=1e-5, atol=1e-7), name


def made(base: ModelConfig, module: str, **more: Any) -> AdapterWeights:
    """Return an adapter of rank 2 of one module."""
    site, random = target_modules(base).matrices[module], np.random.default_rng(0)
    inputs, outputs = (site.part.rows, site.k) if site.kind == "embedding" else (site.k, site.part.rows)
    a, b = random.standard_normal((2, inputs), np.float32), random.standard_normal((outputs, 2), np.float32)
    delta = Delta(site, a, b, 1.0, magnitude=more.get("magnitude"), bias=None)
    return AdapterWeights(Path("it"), "", {module: delta}, biases={}, saved=more.get("saved", {}), base_weights={})


def test_an_adapter_of_the_embedding_is_written_by_rows(base: ModelConfig, tmp_path: Path) -> None:
    adapter = made(base, "model.embed_tokens")
    write_gguf_adapter(adapter, base, tmp_path / "a.gguf", "f32")
    assert tensors_of(tmp_path / "a.gguf")["token_embd.weight.lora_a"].shape == (SHAPE.vocab, 2)
    [found] = GgufAdapterReader().read(tmp_path / "a.gguf", base).deltas.values()
    assert np.array_equal(found.a, adapter.deltas["model.embed_tokens"].a)


def test_what_llama_cpp_does_not_apply_is_refused(base: ModelConfig, tmp_path: Path) -> None:
    module = "model.layers.0.self_attn.q_proj"
    ones = np.ones(4, np.float32)
    empty = AdapterWeights(Path("it"), "", {}, biases={}, saved={}, base_weights={})
    for adapter in (made(base, module, magnitude=ones), made(base, module, saved={"model.norm": ones}), empty):
        with pytest.raises(AdapterError, match="plain LoRA only"):
            write_gguf_adapter(adapter, base, tmp_path / "a.gguf")
    delta = made(base, module).deltas[module]
    odd = dataclasses.replace(delta, site=dataclasses.replace(delta.site, module="model.vision.q_proj"))
    with pytest.raises(AdapterError, match=r"model\.vision\.q_proj of a llama is not written"):
        write_gguf_adapter(dataclasses.replace(made(base, module), deltas={"x": odd}), base, tmp_path / "a.gguf")
