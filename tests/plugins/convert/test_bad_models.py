"""A broken model directory is an error that names the file, the reason and the remedy, and leaves nothing behind."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_parts import load
from safetensors.numpy import load_file, save_file

from infeng_core.errors import InfengError, ModelError, UsageError
from infeng_core.formats.quant import BUILTIN
from infeng_core.plug.assembly import load_config

Maker = Callable[..., Path]
Tensors = dict[str, Any]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def refused(directory: Path | str, cache: Path, kind: type[InfengError] = ModelError, **overrides: Any) -> str:
    """Load, expect an error and an empty cache, and return the error's text."""
    with pytest.raises(kind) as caught:
        load(directory, load_config(overrides={key.replace("__", "."): value for key, value in overrides.items()}))
    assert caught.value.what and caught.value.why and caught.value.remedy
    left = [path for path in cache.rglob("*") if path != cache / "models"]
    assert not left
    return str(caught.value)


def test_a_wrong_shape_names_tensor_and_both_shapes(make_model: Maker, cache: Path) -> None:
    directory = make_model(change=lambda t: t.update({Q_PROJ: np.zeros((64, 32), np.float32)}))
    text = refused(directory, cache)
    expected = f"tensor {Q_PROJ} is (64, 32), config says (60, 72): the file does not match its config.json"
    assert text == f"{directory / 'model.safetensors'}: {expected}"


def test_a_wrong_dtype_names_tensor_and_dtype(make_model: Maker, cache: Path) -> None:
    directory = make_model(change=lambda t: t.update({Q_PROJ: t[Q_PROJ].astype(np.int8)}))
    assert f"tensor {Q_PROJ} is I8, weights must be F32, F16 or BF16" in refused(directory, cache)


def test_a_missing_tensor_is_named(make_model: Maker, cache: Path) -> None:
    text = refused(make_model(change=lambda t: t.pop(Q_PROJ)), cache)
    assert "model.safetensors" in text and f"tensor {Q_PROJ} is missing" in text
    neither = make_model(name="tied", tie_word_embeddings=True, change=lambda t: t.pop("model.embed_tokens.weight"))
    assert "tensor model.embed_tokens.weight is missing (nor lm_head.weight)" in refused(neither, cache)


def test_biases_that_the_config_denies_are_refused(make_model: Maker, cache: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(60, np.float32)

    text = refused(make_model(change=change), cache)
    assert "model.layers.0.self_attn.q_proj.bias has no place in this model" in text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", list(BUILTIN))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_value_that_is_not_finite_names_tensor_row_and_column(
    make_model: Maker, cache: Path, value: float, format: str, dtype: Any
) -> None:
    def change(tensors: Tensors) -> None:
        tensors[Q_PROJ][37, 5] = value
        tensors |= {name: array.astype(dtype) for name, array in tensors.items()}

    text = refused(make_model(change=change), cache, model__format=format)
    assert f"tensor {Q_PROJ}: holds {value} at row 37, column 5" in text


def test_a_norm_weight_that_is_not_finite_names_its_row(make_model: Maker, cache: Path) -> None:
    text = refused(make_model(change=lambda t: t["model.norm.weight"].__setitem__(7, np.nan)), cache)
    assert "tensor model.norm.weight: holds nan at row 7" in text


def test_a_weight_too_large_for_its_format_names_the_way_out(make_model: Maker, cache: Path) -> None:
    directory = make_model(change=lambda t: t[Q_PROJ].__setitem__((3, 3), 1e30))
    text = refused(directory, cache, model__format="int4-g64")
    assert f"tensor {Q_PROJ}: does not fit int4-g64" in text and "model.formats" in text
    assert load(directory, load_config(overrides={"model.format": "f32"})).nbytes


def sharded(directory: Path) -> dict[str, Any]:
    """Split a model over two files; return its index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    where = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, directory / file)
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


@pytest.mark.parametrize(
    "name", [f"{stem}.safetensors" for stem in ("a\0b", "a\ud800", "*", "x" * 5000, "a\nb")], ids=range(5)
)
def test_an_index_with_names_that_no_file_has_is_refused(make_model: Maker, cache: Path, name: str) -> None:
    directory = make_model()
    index = sharded(directory)
    index["weight_map"][Q_PROJ] = name
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    text = refused(directory, cache)
    assert "model.safetensors.index.json" in text and len(text) < 1000 and text.isprintable()


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("what", ["device", "pipe", "sparse", "deep"])
def test_a_strange_file_is_named_and_neither_hangs_nor_fills_the_memory(
    make_model: Maker, cache: Path, file: str, what: str
) -> None:
    directory = make_model()
    if file.endswith("index.json"):
        sharded(directory)
    path = directory / file
    path.unlink(missing_ok=True)
    if what == "device":
        path.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"[" * 1_000_000)
        if what == "sparse":
            os.truncate(path, 1 << 40)
    text = refused(directory, cache)
    assert file in text


def test_a_missing_shard_is_named(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    sharded(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refused(directory, cache)


def test_an_index_that_leaves_the_directory_or_is_no_map_is_refused(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    index = sharded(directory)
    path = directory / "model.safetensors.index.json"
    for file in ("../model.safetensors", "/etc/passwd", "weights.bin"):
        path.write_text(json.dumps({"weight_map": index["weight_map"] | {Q_PROJ: file}}))
        assert "not a safetensors file of this directory" in refused(directory, cache)
    path.write_text(json.dumps({"weight_map": [1]}))
    assert "weight_map is [1], it must be a mapping" in refused(directory, cache)
    path.write_text(json.dumps({"weight_map": {Q_PROJ: 3}}))
    assert "must be a string" in refused(directory, cache)


def test_a_tensor_in_two_shards_is_refused(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    sharded(directory)
    first, second = (directory / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    both = load_file(first) | load_file(second)
    save_file(both, second)
    assert "is in two files" in refused(directory, cache)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b'{"hidden_size": 72,', "not valid JSON (Expecting property name"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"hidden_size": NaN}', "NaN is not a JSON number"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' is given twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "not a mapping"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_broken_json_names_the_file_and_the_place(
    make_model: Maker, cache: Path, content: bytes, reason: str, file: str
) -> None:
    directory = make_model()
    (directory / file).write_bytes(content)
    text = refused(directory, cache)
    assert text.startswith(str(directory / file)) and reason in text


def test_a_directory_without_config_says_what_is_expected(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    (directory / "config.json").unlink()
    assert "config.json: no such file" in refused(directory, cache)


def test_an_unknown_family_names_the_supported_ones(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    assert "LlamaForCausalLM" in refused(directory, cache)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "consolidated.00.pth"])
def test_other_weight_formats_say_how_to_convert(make_model: Maker, cache: Path, file: str) -> None:
    directory = make_model()
    (directory / "model.safetensors").rename(directory / file)
    for reference in (directory, directory / file):
        text = refused(reference, cache)
        assert file in text and "save_pretrained" in text


def test_a_truncated_download_is_named(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    text = refused(directory, cache)
    assert text.startswith(str(path)) and "100 bytes are missing" in text


def test_an_empty_directory_and_wrong_references_are_usage_errors(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no model.safetensors" in refused(tmp_path / "empty", cache)
    assert "no such model directory" in refused(tmp_path / "absent", cache, UsageError)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "give the directory" in refused(tmp_path / "model.safetensors", cache, UsageError)


def test_unreadable_weights_are_an_error(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    path = directory / "model.safetensors"
    path.unlink()
    path.mkdir()
    assert f"{path}: cannot be read" in refused(directory, cache)
    path.rmdir()
    path.symlink_to("gone")
    assert "no model.safetensors" in refused(directory, cache)
