"""``infeng models`` lists models and predicts their memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
import tiny_model
from gguf_calls import export_gguf

from infeng_core import cli
from infeng_core.engine import Engine
from infeng_core.scheduling.blocks import BLOCK_TOKENS

Infeng = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models and what else may lie there."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model.write(folder / "a-directory", tiny_model.Shape(hidden=64, intermediate=256))
    export_gguf(folder / "a-directory", folder / "b.gguf", "q8_0", progress=False)
    tiny_adapter.write(folder / "inside" / "c-adapter", 1)
    (folder / "d-broken.gguf").write_bytes(b"GGUF" + bytes(100))
    (folder / "notes.txt").write_text("nothing of ours")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def infeng(capsys: pytest.CaptureFixture[str]) -> Infeng:
    def run(*words: object) -> tuple[int, str, str]:
        status = cli.main([str(word) for word in words])
        return (status, *capsys.readouterr())

    return run


def test_families_and_formats_are_listed(infeng: Infeng) -> None:
    status, out, _ = infeng("models", "--json")
    known = json.loads(out)
    assert status == 0 and "LlamaForCausalLM" in known["families"]["llama"]
    assert "Q4_0" in known["gguf"]["types"] and "int4-g32" in known["formats"]
    assert "  llama          LlamaForCausalLM" in infeng("models")[1].splitlines()


@pytest.mark.slow
def test_a_folder_stands_for_all_models_in_it(infeng: Infeng, folder: Path) -> None:
    status, out, _ = infeng("models", folder, "--json")
    found = {Path(one["path"]).name: one for one in json.loads(out)}
    assert status == 0 and list(found) == ["a-directory", "b.gguf", "d-broken.gguf", "c-adapter"]
    directory, file = found["a-directory"], found["b.gguf"]
    assert directory["parameters"] == file["parameters"] > 100_000
    assert directory["stored"] == {"F32": directory["stored"]["F32"]} and file["stored"]["Q8_0"] == 15
    assert file["rounded_again"] == {} and file["formats"].keys() == {"int8-g32"}
    assert "version 0" in found["d-broken.gguf"]["why_not"] and "--lora" in found["c-adapter"]["why_not"]


def test_a_folder_of_nothing_says_so_and_fails(infeng: Infeng, folder: Path) -> None:
    status, out, _ = infeng("models", folder / "empty")
    assert (status, len(out.splitlines())) == (1, 2)
    assert "it is no model: neither config.json nor a GGUF file, nor a folder with some" in out
    status, out, _ = infeng("models", folder / "empty", "--json")
    assert (status, [one["path"] for one in json.loads(out)]) == (1, [str(folder / "empty")])


def test_sizes_are_those_of_the_conversion(infeng: Infeng, folder: Path, tmp_path: Path) -> None:
    for name in ("a-directory", "b.gguf"):
        options = (folder / name, "--format", "int4-g64", "--json")
        [wanted] = json.loads(infeng("models", *options)[1])
        made = json.loads(infeng("convert", folder / name, tmp_path / Path(name).stem, *options[1:])[1])
        assert wanted["weight_bytes"] == made["nbytes"]
        [native] = json.loads(infeng("models", tmp_path / Path(name).stem, "--json")[1])
        assert (native["kind"], native["weight_bytes"]) == ("engine-native", made["nbytes"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache.memory": 1 << 20, "kv_cache.dtype": "f16", "scheduler.max_batch_tokens": 128, "threads.count": 1},
        {"model.format": "f32", "adapters.max_resident": 0, "model.load": "mmap", "kv_cache.dtype": "f32"},
    ],
)
def test_an_engine_takes_the_predicted_memory(infeng: Infeng, folder: Path, settings: dict[str, Any]) -> None:
    for name in ("a-directory", "b.gguf"):
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        [said] = json.loads(infeng("models", folder / name, *options, "--json")[1])
        with Engine(folder / name, overrides=settings) as engine:
            assert said["weight_bytes"] == engine.model.nbytes
            assert said["kv_bytes"] == engine.executable.kv_bytes
            assert said["kv_tokens"] == engine.limits.kv_blocks * BLOCK_TOKENS
            assert said["scratch_bytes"] == pytest.approx(engine.executable.scratch_bytes, rel=0.01)
        parts = ("weight_bytes", "kv_bytes", "scratch_bytes", "process_bytes")
        assert said["memory_bytes"] == sum(said[part] for part in parts) and said["process_bytes"] > 1 << 20


def linear_bytes(config: dict[str, Any], bits: float) -> float:
    """Return the bytes of a model's matrices by their number alone: linears of ``bits``, embeddings of 8."""
    hidden, head = (
        config["hidden_size"],
        config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
    )
    heads = config["num_attention_heads"] + config["num_key_value_heads"]
    layer = 2 * head * heads * hidden + 3 * hidden * config["intermediate_size"]
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 1 + bits / 8)
    return config["num_hidden_layers"] * layer * bits / 8 + embeddings


@pytest.mark.parametrize(
    "name",
    [
        "TinyLlama-1.1B-Chat-v1.0",
        "Qwen2.5-0.5B-Instruct",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("Llama-3.2-1B-Instruct", "Mistral-7B-Instruct-v0.3", "SmolLM2-135M", "qwen3-0.6b")
        ),
    ],
)
def test_sizes_of_published_models_follow_from_their_configurations(infeng: Infeng, tmp_path: Path, name: str) -> None:
    if "INFENG_TEST_DATA" not in os.environ:
        pytest.skip("INFENG_TEST_DATA does not name a folder with configs/")
    file = Path(os.environ["INFENG_TEST_DATA"]) / "configs" / f"{name}.config.json"
    shutil.copy(file, tmp_path / "config.json")
    words = ("models", tmp_path, "--format", "int4-g64", "--set", "kv_cache.memory=256MB", "--json")
    status, out, _ = infeng(*words)
    [said] = json.loads(out)
    config = json.loads(file.read_text())
    assert status == 1 and "model.safetensors" in said["why_not"] and said["stored"] == {}
    assert said["weight_bytes"] == pytest.approx(linear_bytes(config, 4.25), rel=0.01)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    assert said["cache_bytes_per_token"] == config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * (head + 4)
    assert 0.99 * (256 << 20) < said["kv_bytes"] <= 256 << 20 and 1e6 < said["scratch_bytes"] < 200e6


def test_the_configuration_of_a_hub_model_is_enough(
    infeng: Infeng, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(folder / "a-directory" / "config.json", snapshot)
    (tmp_path / "models--acme--tiny" / "refs").mkdir()
    (tmp_path / "models--acme--tiny" / "refs" / "main").write_text("0" * 40)
    for name, value in (("HF_HUB_CACHE", str(tmp_path)), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    status, out, _ = infeng("models", "acme/tiny")
    assert status == 0 and "stored     no weights here" in out and "runs       yes" in out
    [said] = json.loads(infeng("models", "acme/tiny", "--json")[1])
    [local] = json.loads(infeng("models", folder / "a-directory", "--json")[1])
    for part in ("weight_bytes", "kv_bytes", "scratch_bytes", "parameters"):
        assert said[part] == local[part]


def test_a_model_that_cannot_be_run_says_why_and_fails(infeng: Infeng, folder: Path) -> None:
    status, out, _ = infeng("models", folder / "d-broken.gguf")
    assert status == 1 and "runs       no: " in out
    status, out, _ = infeng("models", folder / "notes.txt", folder / "a-directory")
    assert status == 1 and "it is no model" in out and "runs       yes" in out


def test_layers_with_a_window_take_its_blocks_alone(infeng: Infeng, tmp_path: Path) -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24}
    extra = {"model_type": "ministral", "architectures": ["MinistralForCausalLM"], **kinds}
    model = tiny_model.write(tmp_path / "model", tiny_model.Shape(extra=extra))
    options = ("--set", "scheduler.max_batch_tokens=32", "--set", "kv_cache.dtype=f32")
    [facts] = json.loads(infeng("models", model, *options, "--json")[1])
    layer = 2 * 2 * 16 * 4  # bytes of a token
    each = (facts["cache_bytes_per_token"], facts["cache_bytes_per_token_behind_window"], facts["cache_window"])
    assert each == (2 * layer, layer, 24)
    assert 256 * layer < facts["cache_bytes"] == (256 + 6 * 16) * layer, "all in one layer, six blocks in the other"
    assert f"{2 * layer} bytes a token ({layer} behind a window of 24)" in infeng("models", model, *options)[1]
    [whole] = json.loads(infeng("models", model, *options, "--set", "kv_cache.windows=false", "--json")[1])
    assert (whole["cache_bytes"], whole["cache_window"]) == (256 * 2 * layer, 0)


def test_a_cache_that_cannot_hold_the_heads_is_given_as_the_reason(infeng: Infeng, tmp_path: Path) -> None:
    tiny_model.write(tmp_path / "odd", tiny_model.Shape(heads=4, head_dim=12))
    tiny_model.write(tmp_path / "even", tiny_model.Shape())
    status, out, _ = infeng("models", tmp_path, "--json", "--set", "kv_cache.dtype=int4h")
    even, odd = sorted(json.loads(out), key=lambda facts: facts["path"])
    assert status == 0 and even["why_not"] == ""
    assert even["cache_bytes_per_token"] == 2 * 2 * (16 + 8)
    assert odd["why_not"] == (
        "kv_cache.dtype: cache format int4h takes heads of a multiple of 8 elements, not of 12: "
        "set it to int8, f16 or f32"
    )
