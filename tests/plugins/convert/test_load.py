"""Loading: every weight of a checkpoint is in its place, in each format."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_parts import load
from infeng_inspect.outline import by_format
from safetensors.numpy import load_file, save_file

from infeng_core.errors import InfengError, ResourceError, UsageError
from infeng_core.formats.tensors import LoadedModel
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config

# Largest error of a row, as a fraction of the row's norm. A row in a wrong place is off by more than 1.
BOUND = {
    "f32": 0.0,
    "bf16": 2.0**-8,
    "int8-row": 0.02,
    "int4-g64": 0.2,
    "int4-g32": 0.15,
    "int4-p32": 0.15,
    "int5-p32": 0.08,
    "int6-p32": 0.045,
    "int4-a256": 0.14,
    "int4-a128": 0.14,
}

Maker = Callable[..., Path]


def loaded(directory: Path, **overrides: Any) -> LoadedModel:
    return load(str(directory), load_config(overrides={key.replace("__", "."): v for key, v in overrides.items()}))


def check_matrices(model: LoadedModel, tensors: dict[str, Any]) -> None:
    for spec in layout(model.config).tensors:
        for part in spec.parts:
            bound = BOUND[model.formats_used[spec.name]]
            expected = tensors[part.source].astype(np.float32)
            error = np.linalg.norm(model.matrix(part.source) - expected, axis=1)
            assert (error <= bound * np.linalg.norm(expected, axis=1)).all(), part.source
    for vector in layout(model.config).vectors:
        for part in vector.parts:
            np.testing.assert_array_equal(model.matrix(part.source), tensors[part.source].astype(np.float32))


@pytest.mark.parametrize("load_mode", ["copy", "mmap"])
@pytest.mark.parametrize("format", list(BOUND))
def test_every_checkpoint_tensor_is_in_the_loaded_model(make_model: Maker, format: str, load_mode: str) -> None:
    directory = make_model(attention_bias=True, mlp_bias=True)
    model = loaded(directory, model__format=format, model__load=load_mode)
    assert set(model.formats_used.values()) == ({format, "int8-row"} if format.startswith("int") else {format})
    check_matrices(model, load_file(directory / "model.safetensors"))
    for tensor in model.tensors.values():
        weight = tensor.native()
        assert (weight.format, weight.n, weight.k, weight.panels) == (tensor.format, tensor.n, tensor.k, tensor.panels)


def test_padding_of_joined_tensors_and_biases_is_zero(make_model: Maker) -> None:
    model = loaded(make_model(attention_bias=True, mlp_bias=True), model__format="f32")
    for spec in layout(model.config).tensors:
        used = np.concatenate([part.columns() for part in spec.parts])
        packed = model.tensors[spec.name]
        every = packed.quant.unpack(packed.buffer, packed.offset, packed.panels, packed.k)
        assert not np.delete(every, used, axis=0).any()
        if spec.name.endswith(("qkv_proj", "gate_up_proj")):
            bias = model.vectors[f"{spec.name}.bias"]
            assert not np.delete(bias, used).any() and bias[used].any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_checkpoints_are_widened_exactly(make_model: Maker, dtype: str) -> None:
    directory = make_model()
    tensors = load_file(directory / "model.safetensors")
    if dtype == "float16":
        rounded = {name: value.astype(np.float16) for name, value in tensors.items()}
        save_file(rounded, directory / "model.safetensors")
        expected = {name: value.astype(np.float32) for name, value in rounded.items()}
    else:
        bits = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in tensors.items()}
        write_bf16(directory / "model.safetensors", bits)
        expected = {name: (value.astype(np.uint32) << 16).view(np.float32) for name, value in bits.items()}
    check_matrices(loaded(directory, model__format="f32"), expected)


def write_bf16(path: Path, tensors: dict[str, Any]) -> None:
    """numpy has no bf16, so the file is put together by hand."""
    header, data = {}, b""
    for name, value in tensors.items():
        begin = len(data)
        data += value.tobytes()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_a_sharded_checkpoint_equals_a_single_file(make_model: Maker) -> None:
    single, sharded = make_model(), make_model(name="sharded")
    tensors = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(tensors)
    index = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, sharded / file)
        index |= dict.fromkeys(part, file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert loaded(single).id == loaded(sharded).id


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight", "both"])
def test_tied_embeddings_load_from_whichever_name_is_stored(make_model: Maker, stored: str) -> None:
    def change(tensors: dict[str, Any]) -> None:
        embed = tensors.pop("model.embed_tokens.weight")
        for name in ("model.embed_tokens.weight", "lm_head.weight") if stored == "both" else (stored,):
            tensors[name] = embed.copy()

    plain = loaded(make_model(name="plain", tie_word_embeddings=True), model__format="f32")
    model = loaded(make_model(change=change, tie_word_embeddings=True), model__format="f32")
    assert model.id == plain.id and "lm_head" not in model.tensors
    np.testing.assert_array_equal(model.matrix("model.embed_tokens.weight"), plain.matrix("lm_head.weight"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_stored_head_that_differs_from_the_embeddings_is_used_although_the_config_ties_them(
    make_model: Maker, dtype: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infeng_convert.hfcheckpoint.COMPARED", 1000)  # less than a tensor

    def change(tensors: dict[str, Any]) -> None:
        head = tensors["model.embed_tokens.weight"].copy()
        head[-1, -1] += 1  # the last of all values
        tensors["lm_head.weight"] = head.astype(dtype)

    directory = make_model(change=change, tie_word_embeddings=True)
    tied = loaded(directory, model__format="f32")
    assert "lm_head.weight differs from model.embed_tokens.weight" in capfd.readouterr().err
    tensors = load_file(directory / "model.safetensors")
    np.testing.assert_array_equal(tied.matrix("lm_head.weight"), tensors["lm_head.weight"].astype(np.float32))
    np.testing.assert_array_equal(tied.matrix("model.embed_tokens.weight"), tensors["model.embed_tokens.weight"])
    untied = make_model(name="untied", change=change)  # the config.json that transformers advises
    assert not tied.config.tie_embeddings
    assert tied.config == loaded(untied, model__format="f32").config


def test_stored_rotary_buffers_are_ignored(make_model: Maker) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(5, np.float32)

    assert loaded(make_model(change=change)).id == loaded(make_model(name="plain")).id


def test_the_second_load_comes_from_the_cache(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    first = loaded(directory)
    (entry,) = (cache / "models").iterdir()
    found = (entry / "manifest.yaml").stat()
    assert first.source == entry
    assert loaded(directory).id == first.id
    again = (entry / "manifest.yaml").stat()
    assert (again.st_mtime_ns, again.st_ino) == (found.st_mtime_ns, found.st_ino)


def test_a_changed_source_or_format_is_converted_anew(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    first = loaded(directory)
    assert loaded(directory, model__format="bf16").id != first.id
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    save_file(tensors, directory / "model.safetensors")
    assert loaded(directory).id != first.id
    assert len(list((cache / "models").iterdir())) == 3


def test_a_damaged_cache_entry_is_made_again(make_model: Maker, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = make_model()
    good = loaded(directory).id
    (weights,) = cache.glob("models/*/weights-00001.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert loaded(directory).id == good
    assert "damaged" in capfd.readouterr().err
    assert loaded(directory).id == good
    assert "damaged" not in capfd.readouterr().err


def belongs_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:  # only root can give a file away: we become another instead
        monkeypatch.setattr("os.geteuid", lambda: 54321)


@pytest.mark.parametrize("place", [".", "models", "models/*", "models/*/manifest.yaml", "models/*/weights-00001.*"])
def test_a_cache_of_another_user_or_writable_by_all_is_not_trusted(
    make_model: Maker, cache: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_model()
    loaded(directory)
    (path,) = cache.glob(place) if place != "." else [cache]
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(ResourceError, match="may be written by every user: it is not trusted: set INFENG_CACHE"):
        loaded(directory)
    path.chmod(path.stat().st_mode & ~0o002)
    assert loaded(directory).nbytes
    belongs_to_another(path, monkeypatch)
    with pytest.raises(ResourceError, match=r"belongs to another user \(\d+\): it is not trusted"):
        loaded(directory)


def test_a_cache_created_under_an_open_umask_is_trusted(make_model: Maker, cache: Path) -> None:
    before = os.umask(0)
    try:
        first = loaded(make_model())
    finally:
        os.umask(before)
    assert loaded(first.tokenizer_dir).source == first.source
    cache.chmod(0o1777)  # as /tmp
    assert loaded(first.tokenizer_dir).id == first.id


def test_a_cache_entry_with_another_conversion_is_made_again(
    make_model: Maker, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = loaded(make_model(name="other", change=lambda t: t["model.norm.weight"].fill(2)))
    first = loaded(make_model())
    shutil.rmtree(first.source)
    shutil.copytree(other.source, first.source)
    assert loaded(first.tokenizer_dir).id == first.id != other.id
    assert "is another conversion than its name says" in capfd.readouterr().err


@pytest.mark.parametrize("reference", ["x" * 300, "x" * 5000, "~nobodyhere/x", "nul\0", "/", "a/" + "b" * 500])
def test_an_impossible_reference_is_an_error(reference: str) -> None:
    with pytest.raises(InfengError) as caught:
        loaded(Path(reference))
    assert len(str(caught.value)) < 6000


def test_formats_are_per_tensor_and_the_last_pattern_wins(make_model: Maker) -> None:
    formats = {"*": "bf16", "layers.*.down_proj": "int8-row", "layers.1.*": "f32", "lm_head": "int4-g64"}
    used = loaded(make_model(), model__formats=formats).formats_used
    assert (used["embed"], used["lm_head"]) == ("bf16", "int4-g64")
    assert (used["layers.0.down_proj"], used["layers.1.down_proj"], used["layers.0.o_proj"]) == (
        "int8-row",
        "f32",
        "bf16",
    )


def test_formats_are_summed_up_by_tensor_unless_layers_differ() -> None:
    used = {"embed": "int8-row", "layers.0.o_proj": "f32", "layers.0.down_proj": "f32"}
    used |= {"layers.1.o_proj": "f32", "layers.1.down_proj": "bf16"}
    assert by_format(used) == {
        "int8-row": ["embed"],
        "f32": ["layers.*.o_proj", "layers.0.down_proj"],
        "bf16": ["layers.1.down_proj"],
    }


def test_by_default_embeddings_stay_at_int8_and_an_untied_head_does_not(make_model: Maker) -> None:
    used = loaded(make_model()).formats_used
    assert (used["embed"], used["lm_head"], used["layers.0.o_proj"]) == (
        "int8-row",
        "int4-p32",
        "int4-p32",
    )  # few inputs


def test_a_float_format_means_every_tensor_unless_formats_say_otherwise(make_model: Maker, tmp_path: Path) -> None:
    directory = make_model()
    assert set(loaded(directory, model__format="f32").formats_used.values()) == {"f32"}
    used = loaded(directory, model__format="f32", model__formats={"embed": "int8-row"}).formats_used
    assert used["embed"] == "int8-row"
    one_entry = {"model.format": "f32", "model.formats.lm_head": "int8-row"}
    used = load(directory, load_config(overrides=one_entry)).formats_used
    assert (used["embed"], used["lm_head"]) == ("f32", "int8-row")
    manifest = tmp_path / "engine.yaml"
    manifest.write_text("infeng: 1\nmodel: {format: bf16, formats: {embed: int8-row}}\n")
    assert load(directory, load_config(manifest)).formats_used["embed"] == "int8-row"
    assert load(directory, load_config(manifest, overrides={"model.format": "f32"})).formats_used["embed"] == "f32"


def test_a_pattern_that_fits_no_tensor_is_an_error(make_model: Maker) -> None:
    for pattern, remedy in (
        ("embd", "did you mean `embed`?"),
        ("layers.*.dwn_proj", "did you mean `layers.*.down_proj`?"),
        ("layers.7.down_proj", "did you mean `layers.*.down_proj`?"),  # the model has two layers
        ("model.layers.0.mlp.down_proj.weight", "did you mean `layers.*.down_proj`?"),  # the checkpoint's name for it
        (
            "attention",
            "known here: embed, layers.*.down_proj, layers.*.gate_up_proj, layers.*.o_proj, layers.*.qkv_proj",
        ),
    ):
        with pytest.raises(
            UsageError, match=re.escape(f"model.formats.{pattern}: fits no tensor of the model: {remedy}")
        ):
            loaded(make_model(name=pattern), model__formats={pattern: "f32"})
    tied = make_model(name="tied", tie_word_embeddings=True)
    assert "lm_head" not in loaded(tied, model__formats={"lm_head": "f32"}).formats_used


def test_an_unknown_format_is_an_error_that_lists_the_known_ones(make_model: Maker) -> None:
    with pytest.raises(UsageError, match=r"q4_0.*unknown.*int4-g32, int4-g64"):
        loaded(make_model(), model__format="q4_0")
    with pytest.raises(UsageError, match=r"int8-rows.*unknown: did you mean `int8-row`\?"):
        loaded(make_model(name="typo"), model__formats={"layers.*.down_proj": "int8-rows"})


def test_every_choice_of_formats_is_a_conversion_of_its_own(make_model: Maker, cache: Path) -> None:
    directory = make_model()
    choices = [
        {},
        {"embed": "int8-row"},
        {"embed": "int4-g32"},
        {"layers.0.down_proj": "int8-row", "embed": "int8-row"},
    ]
    choices += [{"*": "bf16", "embed": "f32"}, {"embed": "f32", "*": "bf16"}]  # the last match wins: another model
    ids = [loaded(directory, model__formats=formats).id for formats in choices]
    assert len(set(ids)) == len(ids) == len(list((cache / "models").iterdir()))
    again = [loaded(directory, model__formats=formats).id for formats in choices]
    assert again == ids and len(list((cache / "models").iterdir())) == len(ids)


def test_the_trained_model_loads_with_its_own_values(stories260k: Path) -> None:
    tensors = load_file(stories260k / "model.safetensors")
    for format in BOUND:
        check_matrices(loaded(stories260k, model__format=format), tensors)
    assert (loaded(stories260k).tokenizer_dir / "tokenizer.json").is_file()
