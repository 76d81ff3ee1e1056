"""LoRA adapters in GGUF do what the PEFT directories do that they were made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_writing
import numpy as np
import pytest
import tiny_adapter
import tiny_model
from adapter_calls import convert_adapter, load_adapter
from convert_parts import load
from numpy.typing import NDArray
from safetensors.numpy import load_file

from infeng_core.engine import Engine
from infeng_core.errors import AdapterError
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config
from infeng_core.requests.request import SamplingParams

SHAPE = tiny_model.Shape()
PREFIX = "base_model.model."


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def peft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapter.write(tmp_path_factory.mktemp("peft"), 1)


@pytest.fixture
def model(base: Path) -> LoadedModel:
    return load(base, load_config(None, overrides={"model.format": "f32"}), progress=False)


def write(
    path: Path,
    peft: Path,
    *,
    kind: str = "F32",
    arch: str = "llama",
    alpha: float | None = None,
    change: Callable[[dict[str, NDArray[Any]]], object] = lambda tensors: None,
    more: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
    type: str = "adapter",
) -> Path:
    """Write a PEFT directory as convert_lora_to_gguf.py does: q's and k's rows of B in the exporter's order."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 8)
    tensors = {}
    for name, values in load_file(peft / "adapter_model.safetensors").items():
        module, _, side = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
        heads = {"q_proj": SHAPE.heads, "k_proj": SHAPE.kv_heads}.get(module.rpartition(".")[2])
        if heads and side == "B":
            values = gguf_writing.interleaved(values, heads)
        tensors[f"{table.get_name(f'{module}.weight', ('.weight',))}.lora_{side.lower()}"] = values
    change(tensors)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_type(type)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0 if alpha is None else alpha)
    more(writer)
    to = gguf.GGMLQuantizationType[kind]
    for name, values in tensors.items():
        writer.add_tensor(name, gguf.quantize(values, to), raw_dtype=to)
    gguf_writing.finish(writer)
    return path


def test_an_adapter_equals_the_peft_adapter_in_every_byte(tmp_path: Path, peft: Path, model: LoadedModel) -> None:
    path = write(tmp_path / "a.gguf", peft)
    wanted, found = load_adapter(peft, model, "f32"), load_adapter(path, model, "f32")
    assert found.id == wanted.id and found.nbytes == wanted.nbytes
    one = convert_adapter(peft, tmp_path / "one", model, "int8")
    assert convert_adapter(path, tmp_path / "two", model, "int8").id == one.id


def test_a_folder_of_one_file_is_the_adapter(tmp_path: Path, peft: Path, model: LoadedModel) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = write(folder / "a.gguf", peft)
    (folder / "README.md").write_text("# an adapter")
    assert load_adapter(folder, model, "f32").id == load_adapter(path, model, "f32").id
    (tmp_path / "outside.gguf").write_bytes(path.read_bytes())
    (folder / "b.gguf").symlink_to(tmp_path / "outside.gguf")
    with pytest.raises(AdapterError, match=r"holds 2 \.gguf files: give each adapter a folder of its own"):
        load_adapter(folder, model, "f32")
    path.unlink()
    with pytest.raises(AdapterError, match="is a link that leads out of the directory"):
        load_adapter(folder, model, "f32")


def test_f16_and_an_alpha_of_zero_are_read(tmp_path: Path, peft: Path, model: LoadedModel) -> None:
    half = load_adapter(write(tmp_path / "h.gguf", peft, kind="F16"), model, "f32")
    assert half.tensors.keys() == load_adapter(peft, model, "f32").tensors.keys()
    plain = load_adapter(write(tmp_path / "z.gguf", peft, alpha=0.0), model, "f32")
    assert {tensor.scaling.tolist()[0] for tensor in plain.tensors.values()} <= {1.0}


def test_a_text_gets_the_answer_of_the_peft_adapter(tmp_path: Path, peft: Path, base: Path) -> None:
    path = write(tmp_path / "a.gguf", peft)
    with Engine(base, overrides={"model.format": "f32", "threads.count": 1}) as engine:
        engine.adapters.load("peft", peft)
        engine.adapters.load("gguf", path)
        params = SamplingParams(temperature=0.0, max_tokens=12)
        one, other, plain = engine.generate(["the quick"] * 3, params, adapters=["peft", "gguf", None])
    assert one.text == other.text != plain.text


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a model": ({"type": "model"}, "general.type is 'model'"),
    "another kind": ({"more": lambda writer: writer.add_string("adapter.alora.invocation_tokens", "x")}, "alora"),
    "another architecture": ({"arch": "qwen2"}, "the base is a llama"),
    "an unknown architecture": ({"arch": "mamba"}, "mamba"),
    "no B": ({"change": lambda tensors: tensors.pop("blk.0.attn_q.weight.lora_b")}, "lora_b is missing"),
    "a layer too many": (
        {"change": lambda t: t.update({"blk.9.attn_q.weight.lora_a": t["blk.0.attn_q.weight.lora_a"]})},
        "no place in this base",
    ),
    "another rank": (
        {"change": lambda t: t.update({"blk.0.attn_q.weight.lora_b": t["blk.0.attn_q.weight.lora_b"][:, :2].copy()})},
        "are expected",
    ),
    "another width": (
        {"change": lambda t: t.update({"blk.0.attn_q.weight.lora_a": np.zeros((4, 32), np.float32)})},
        "are expected",
    ),
    "NaN": ({"change": lambda t: t["blk.0.attn_q.weight.lora_a"].fill(np.nan)}, "not finite"),
    "nothing": ({"change": lambda tensors: tensors.clear()}, "no tensor"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_inconsistent_parts_are_refused_by_name(tmp_path: Path, peft: Path, model: LoadedModel, name: str) -> None:
    changes, why = BROKEN[name]
    path = write(tmp_path / "a.gguf", peft, **changes)
    with pytest.raises(AdapterError, match=why) as caught:
        load_adapter(path, model, "f32")
    assert "a.gguf" in str(caught.value) and caught.value.remedy


def test_a_file_of_another_kind_is_refused_as_an_adapter(tmp_path: Path, model: LoadedModel) -> None:
    path = tmp_path / "a.bin"
    path.write_text(json.dumps({}))
    with pytest.raises(AdapterError, match="is a file"):
        load_adapter(path, model, "f32")
