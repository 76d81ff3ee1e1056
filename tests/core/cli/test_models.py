"""``infeng models``: what there is, and what it would need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_adapter
import tiny_model

from infeng_core import cli
from infeng_core.formats.gguf.export import export_gguf

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


def test_a_folder_is_all_that_is_in_it(infeng: Infeng, folder: Path) -> None:
    status, out, _ = infeng("models", folder, "--json")
    found = {Path(one["path"]).name: one for one in json.loads(out)}
    assert status == 0 and list(found) == ["a-directory", "b.gguf", "d-broken.gguf", "c-adapter"]
    directory, file = found["a-directory"], found["b.gguf"]
    assert directory["parameters"] == file["parameters"] > 100_000
    assert directory["stored"] == {"F32": directory["stored"]["F32"]} and file["stored"]["Q8_0"] == 15
    assert file["rounded_again"] == {"Q8_0 -> int8-row": "15 tensors"} and file["formats"].keys() == {"int8-row"}
    assert "version 0" in found["d-broken.gguf"]["why_not"] and "--lora" in found["c-adapter"]["why_not"]


def test_sizes_are_those_of_the_conversion(infeng: Infeng, folder: Path, tmp_path: Path) -> None:
    for name in ("a-directory", "b.gguf"):
        options = (folder / name, "--format", "int4-g64", "--json")
        [wanted] = json.loads(infeng("models", *options)[1])
        made = json.loads(infeng("convert", folder / name, tmp_path / Path(name).stem, *options[1:])[1])
        assert wanted["weight_bytes"] == made["nbytes"]
        [native] = json.loads(infeng("models", tmp_path / Path(name).stem, "--json")[1])
        assert (native["kind"], native["weight_bytes"]) == ("engine-native", made["nbytes"])


def test_a_model_that_cannot_be_run_says_why_and_fails(infeng: Infeng, folder: Path) -> None:
    status, out, _ = infeng("models", folder / "d-broken.gguf")
    assert status == 1 and "runs       no: " in out
    status, out, _ = infeng("models", folder / "notes.txt", folder / "a-directory")
    assert status == 1 and "it is no model" in out and "runs       yes" in out


def test_a_cache_that_cannot_hold_the_heads_of_a_model_is_why_it_is_not_run(infeng: Infeng, tmp_path: Path) -> None:
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
