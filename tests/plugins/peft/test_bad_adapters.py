"""Adapters that are broken, hostile or for another base end in an AdapterError that names what does not fit."""

import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_calls import convert_adapter, load_adapter
from drawn import examples
from goldens.adapted import ADAPTED, Adapted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infeng_convert.api import parse_config
from infeng_convert.safetensors_file import SafetensorsFile
from infeng_peft.adapter import read_peft
from safetensors.numpy import load_file, save_file

from infeng_core.errors import AdapterError
from infeng_core.formats.floats import widened
from infeng_core.formats.tensors import LoadedModel

CASES = {case.name: case for case in ADAPTED if not case.combines}
Bases = Callable[[Adapted, str], LoadedModel]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def base(bases: Bases) -> LoadedModel:
    return bases(CASES["lora"], "int8-row")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A copy of the golden "lora": rank 4 on all linears of two layers, float32."""
    return Path(shutil.copytree(CASES["lora"].directory, tmp_path / "adapter"))


def change_tensors(adapter: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS)


def change_config(adapter: Path, **changes: Any) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | changes))


def refused(adapter: Path, base: LoadedModel, dtype: Any = "int8") -> str:
    with pytest.raises(AdapterError) as caught:
        load_adapter(adapter, base, dtype)
    assert caught.value.remedy and len(str(caught.value)) < 2000
    return str(caught.value)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop(f"{Q}.lora_A.weight"), f"tensor {Q}.lora_A.weight is missing, although"),
        (lambda t: t.pop(f"{Q}.lora_B.weight"), f"tensor {Q}.lora_B.weight is missing, although"),
        (lambda t: t.update({f"{Q}.lora_A.weight": ones(4, 64)}), "is (4, 64), (4, 72) is expected"),
        (lambda t: t.update({f"{Q}.lora_A.weight": ones(5, 72)}), "is (5, 72), (4, 72) is expected"),
        (lambda t: t.update({f"{Q}.lora_B.weight": ones(4, 96)}), "is (4, 96), (96, 4) is expected"),
        (lambda t: t.update({f"{Q}.lora_B.weight": ones(96, 4, 1)}), "is (96, 4, 1), (96, 4) is expected"),
        (lambda t: t.update({f"{Q}.lora_B.weight": ones(0, 4)}), "is (0, 4), (96, 4) is expected"),
        (lambda t: t.update({f"{Q}.lora_B.bias": ones(96)}), "lora_B.bias is not called for by adapter_config.json"),
        (lambda t: t.update({f"{Q}.lora_magnitude_vector": ones(96)}), "is not called for by adapter_config.json"),
        (lambda t: t.update({f"{Q}.weight": ones(96, 72)}), "has no place in this base"),
        (lambda t: t.update({"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": ones(4, 72)}), "no place"),
        (lambda t: t.update({"base_model.model.../../../etc/passwd": ones(4)}), "passwd has no place in this base"),
        (lambda t: t.update({"../../../etc/passwd": ones(4)}), "does not begin with base_model.model."),
        (lambda t: t.update({"/etc/passwd": ones(4), "b": ones(1)}), "(nor have 1 others)"),
        (lambda t: t.update({"x" * 100_000: ones(4)}), "does not begin with base_model.model."),
        (lambda t: t.update({"a\ninfeng: error: \x1b[31m": ones(4)}), r"tensor 'a\ninfeng: error: \x1b[31m' does not"),
        (lambda t: t.clear(), "is missing, although"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 72), np.int8)}), "is I8, it must be F32, F16 or BF16"),
        (lambda t: t.update({f"{Q}.lora_A.weight": np.ones((4, 72))}), "is F64, it must be F32, F16 or BF16"),
        (lambda t: t[f"{Q}.lora_A.weight"].__setitem__((1, 7), np.nan), "holds nan at (1, 7)"),
        (lambda t: t[f"{Q}.lora_B.weight"].__setitem__((95, 3), -np.inf), "holds -inf at (95, 3)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(adapter: Path, base: LoadedModel, change: Any, reason: str) -> None:
    change_tensors(adapter, change)
    said = refused(adapter, base)
    assert said.startswith(f"{adapter / WEIGHTS}: tensor ") and reason in said and said.isprintable()


@pytest.mark.parametrize("dtype", [np.float16, "BF16"])
def test_infinity_in_half_precision_is_found(dtype: Any, tmp_path: Path, bases: Bases) -> None:
    case = CASES["one-layer" if dtype is np.float16 else "rslora"]
    adapter = Path(shutil.copytree(case.directory, tmp_path / "adapter"))
    data = bytearray((adapter / WEIGHTS).read_bytes())
    data[-2:] = b"\x00\x7c" if dtype is np.float16 else b"\x80\x7f"
    (adapter / WEIGHTS).write_bytes(data)
    assert "holds inf at" in refused(adapter, bases(case, "f32"))


def test_the_base_that_an_adapter_was_made_for_is_named(adapter: Path, bases: Bases) -> None:
    change_config(adapter, base_model_name_or_path="acme/other-7b")
    said = refused(adapter, bases(CASES["rslora"], "f32"))
    assert "(4, 72), (4, 64) is expected" in said and "it was made for 'acme/other-7b': load it over the model" in said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"r": 8}, "(4, 72), (8, 72) is expected"),
        ({"rank_pattern": {"q_proj": 2}}, "(4, 72), (2, 72) is expected"),
        ({"r": 100_000}, "r is 100000, it must be from 1 to 256"),
        ({"target_modules": ["q_proj"]}, "is not called for by adapter_config.json"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head.lora_A.weight is missing"),
        ({"target_modules": ["nothing"]}, "target_modules is ('nothing',), which fits no module"),
        ({"target_modules": []}, "which fits no module"),
        ({"use_dora": True}, "lora_magnitude_vector is missing"),
        ({"lora_bias": True}, "lora_B.bias is missing"),
        ({"modules_to_save": ["norm"]}, "tensor base_model.model.model.layers.0.input_layernorm.weight is missing"),
        ({"modules_to_save": ["mlp"]}, "modules_to_save names model.layers.0.mlp; only embeddings, head and norms"),
        ({"modules_to_save": ["score"]}, ""),
        ({"modules_to_save": ["embed_tokens"]}, "model.embed_tokens.weight is missing"),
        ({"peft_type": "PREFIX_TUNING"}, "only LORA adapters"),
    ],
)
def test_a_configuration_that_does_not_belong_to_the_file_is_refused(
    adapter: Path, base: LoadedModel, changes: Any, reason: str
) -> None:
    change_config(adapter, **changes)
    if reason:
        assert reason in refused(adapter, base)
    else:  # PEFT passes over modules that the base has not
        assert load_adapter(adapter, base, "int8").tensors


def test_tied_ends_that_are_trained_together_are_both_replaced(tmp_path: Path, bases: Bases) -> None:
    base = bases(CASES["saved-embedding"], "f32")
    adapter = Path(shutil.copytree(CASES["saved-embedding"].directory, tmp_path / "adapter"))
    assert set(load_adapter(adapter, base, "f32").saved_tensors) == {"embed"}
    change_config(adapter, ensure_weight_tying=True)
    for _ in range(2):
        found = load_adapter(adapter, base, "f32").saved_tensors
        panels = [bytes(np.frombuffer(one.buffer, np.uint8, one.nbytes, one.offset)) for one in found.values()]
        assert set(found) == {"embed", "lm_head"} and panels[0] == panels[1]
        stored = SafetensorsFile(adapter / "adapter_model.safetensors")
        tensors = {name: stored.array(name) for name in stored.tensors}
        tensors = {name: widened(one) if one.dtype == np.uint16 else one for name, one in tensors.items()}
        # PEFT writes the head too, which is the same
        tensors["base_model.model.lm_head.weight"] = tensors["base_model.model.model.embed_tokens.weight"].copy()
        save_file(tensors, adapter / "adapter_model.safetensors")


def test_embeddings_of_another_vocabulary_are_refused(tmp_path: Path, bases: Bases) -> None:
    adapter = Path(shutil.copytree(CASES["saved"].directory, tmp_path / "adapter"))
    name = "base_model.model.model.embed_tokens.weight"
    change_tensors(adapter, lambda t: t.update({name: np.ones((301, 64), np.float16)}))
    assert "is (301, 64), (300, 64) is expected" in refused(adapter, bases(CASES["saved"], "f32"))


def test_other_embeddings_under_an_embeddings_lora_take_the_place_of_the_bases(tmp_path: Path, bases: Bases) -> None:
    case = CASES["embedding"]
    model = bases(case, "f32")
    assert not load_adapter(case.directory, model, "f32").saved_tensors
    adapter = Path(shutil.copytree(case.directory, tmp_path / "adapter"))
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    change_tensors(adapter, lambda t: t.update({name: t[name] + np.float32(1)}))
    saved = load_adapter(adapter, model, "f32").saved_tensors
    assert saved.keys() == {"embed", "lm_head"}  # tied: PEFT loads it into the one weight of both
    for packed in saved.values():
        assert np.array_equal(packed.dequantize(), load_file(adapter / WEIGHTS)[name])


def test_a_value_too_large_for_the_storage_is_an_error(adapter: Path, base: LoadedModel) -> None:
    huge = np.float32(3.4e38)
    change_tensors(adapter, lambda t: t[f"{Q}.lora_B.weight"].__setitem__((0, 0), huge))
    assert "B of model.layers.0.self_attn.q_proj does not fit bf16" in refused(adapter, base, "bf16")
    change_tensors(adapter, lambda t: t[f"{Q}.lora_A.weight"].__setitem__((0, 0), huge))
    assert "A of layers.0.qkv_proj does not fit bf16" in refused(adapter, base, "bf16")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_weights_that_would_make_rows_infinite_are_refused(
    adapter: Path, base: LoadedModel, part: str, dtype: Any
) -> None:
    change_tensors(adapter, lambda t: t[f"{Q}.{part}.weight"].__setitem__((0, 0), np.float32(1e30)))
    said = refused(adapter, base, dtype)
    assert re.search(r"layers\.0\.qkv_proj may add numbers of .*e\+30, whose squares float32 does not hold", said)
    with pytest.raises(AdapterError, match="may add numbers"):
        convert_adapter(adapter, adapter.parent / "converted", base, dtype)
    assert not (adapter.parent / "converted").exists()


@pytest.mark.parametrize("scale", [1e300, -1e39, 1e30, math.inf, math.nan])
def test_a_scale_that_would_make_rows_infinite_is_refused(
    adapter: Path, base: LoadedModel, scale: float, tmp_path: Path
) -> None:
    converted = convert_adapter(adapter, tmp_path / "converted", base, "int8").path
    for directory in (adapter, converted):
        with pytest.raises(AdapterError, match=r"may add numbers of|cannot be scaled by"):
            load_adapter(directory, base, "int8", scale=scale)
        assert load_adapter(directory, base, "int8", scale=1e6).reach > 0


def test_products_that_overflow_are_refused_though_no_factor_is_large(adapter: Path, base: LoadedModel) -> None:
    def grow(tensors: dict[str, Any]) -> None:
        tensors[f"{Q}.lora_A.weight"][:] = 1e12
        tensors[f"{Q}.lora_B.weight"][:] = 1e12

    change_tensors(adapter, grow)
    for dtype in ("f32", "bf16", "int8"):
        assert "may add numbers of" in refused(adapter, base, dtype)


@pytest.mark.parametrize(
    ("case", "name"),
    [("dora", f"{Q}.lora_magnitude_vector"), ("saved", "base_model.model.model.norm.weight")],
)
def test_scales_and_modules_that_would_make_rows_infinite_are_refused(
    tmp_path: Path, bases: Bases, case: str, name: str
) -> None:
    adapter = Path(shutil.copytree(CASES[case].directory, tmp_path / "adapter"))
    change_tensors(adapter, lambda t: t.update({name: np.full_like(t[name], 3e38, np.float32)}))
    assert "whose squares float32 does not hold" in refused(adapter, bases(CASES[case], "f32"), "f32")


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_pickles_are_refused_with_the_remedy(adapter: Path, base: LoadedModel, name: str) -> None:
    (adapter / WEIGHTS).rename(adapter / name)
    said = refused(adapter, base)
    assert f"{adapter / name}: PyTorch pickle files can run code" in said and "safe_serialization=True" in said


@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
def test_a_name_in_a_configuration_is_escaped_and_cut(adapter: Path, base: LoadedModel, field: str) -> None:
    for name in ("q_proj\ninfeng: error: forged", "\x1b[2Jq", "x\u202e"):
        change_config(adapter, **{field: {name: "much"}})
        said = refused(adapter, base)
        assert f"{field}.'" in said and said.isprintable()
    change_config(adapter, **{field: {}, "a\nb" * 1000: 1})
    said = refused(adapter, base)
    assert "which is not run here" in said and said.isprintable()


def test_files_that_are_missing_are_named(adapter: Path, base: LoadedModel, tmp_path: Path) -> None:
    (adapter / WEIGHTS).unlink()
    assert f"{adapter}: has no {WEIGHTS}" in refused(adapter, base)
    shutil.copy(CASES["lora"].directory / WEIGHTS, adapter)
    (adapter / CONFIG).unlink()
    assert f"{adapter / CONFIG}: no such file" in refused(adapter, base)
    (tmp_path / "empty").mkdir()
    assert "holds no adapter" in refused(tmp_path / "empty", base)
    assert "no such adapter directory" in refused(tmp_path / "absent", base)
    assert "is a file: give the directory" in refused(adapter / WEIGHTS, base)
    assert "no such adapter directory" in refused(Path("a\0b"), base)
    assert "no usable path" in refused(Path("~nobody-of-this-name/adapter"), base)
    assert "no usable path" in refused(tmp_path / ("x" * 5000), base)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_files_that_are_not_regular_are_not_read(adapter: Path, base: LoadedModel, name: str) -> None:
    path = adapter / name
    path.unlink()
    path.symlink_to("/dev/zero")
    assert f"{path}: is a link that leads out of the directory" in refused(adapter, base)
    path.unlink()
    os.mkfifo(path)
    assert f"{path}: cannot be read (it is no regular file)" in refused(adapter, base)
    path.unlink()
    path.mkdir()
    assert f"{path}: cannot be read" in refused(adapter, base)
    path.rmdir()
    path.symlink_to("gone")
    assert "adapter" in refused(adapter, base)
    path.unlink()
    path.symlink_to(path.name)
    assert "cannot be read" in refused(adapter, base) or "has no" in refused(adapter, base)


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


HUGE = {"dtype": "F32", "shape": [4, 72], "data_offsets": [0, 1152]}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "has 0 bytes"),
        (raw({}, length=1 << 62), "more than the limit of 16777216"),
        (raw({}, length=17 << 20), "more than the limit of 16777216"),
        (raw({}, length=1 << 20), "has 10 bytes in all"),
        (raw(b'{"a": ' + b"[" * 100_000), "nested too deeply"),
        (raw({f"{Q}.lora_A.weight": HUGE}), "1152 bytes are missing"),
        (raw({f"{Q}.lora_A.weight": HUGE | {"data_offsets": [0, 1 << 50], "shape": [1 << 48]}}), "bytes are missing"),
        (raw({f"{Q}.lora_A.weight": HUGE | {"shape": [1 << 62, 1 << 62]}}), "data_offsets span"),
        (raw({f"{Q}.lora_A.weight": HUGE, f"{Q}.lora_B.weight": HUGE}, bytes(1152)), "overlaps"),
        (b"\x80\x04\x95" + bytes(64), "claims a header"),
        (b"PK\x03\x04" + bytes(1000), "claims a header"),
    ],
)
def test_a_file_that_promises_more_than_it_has_is_refused(
    adapter: Path, base: LoadedModel, data: bytes, reason: str
) -> None:
    (adapter / WEIGHTS).write_bytes(data)
    assert reason in refused(adapter, base)


def test_sparse_gigabytes_are_refused_before_they_are_read(adapter: Path, base: LoadedModel) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 8 << 30
    header = raw({"base_model.model.lm_head.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    with (adapter / WEIGHTS).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    assert "is missing, although" in refused(adapter, base)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_every_prefix_of_a_file_is_refused(adapter: Path, base: LoadedModel) -> None:
    whole = (adapter / WEIGHTS).read_bytes()
    for size in (*range(0, 64, 7), *range(64, len(whole), len(whole) // 40), len(whole) - 1):
        (adapter / WEIGHTS).write_bytes(whole[:size])
        refused(adapter, base)


def outcome(adapter: Path, base: LoadedModel) -> None:
    """Load, or fail as an adapter may: anything else fails the test."""
    try:
        loaded = load_adapter(adapter, base, "int8")
    except AdapterError as error:
        assert error.remedy
    else:
        for tensor in loaded.tensors.values():
            assert np.isfinite(tensor.scaling).all()
            for part in tensor.parts:
                assert part.b_scale is None or np.isfinite(widened(part.b_scale)).all()


quiet = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=5), where=st.booleans()
)
def test_no_mutation_of_the_weights_does_worse_than_an_adapter_error(
    adapter: Path, base: LoadedModel, changes: list[tuple[float, int]], where: bool
) -> None:
    data = bytearray((CASES["lora"].directory / WEIGHTS).read_bytes())
    span = 8 + int.from_bytes(data[:8], "little") if where else len(data)  # the header alone, or all
    for place, value in changes:
        data[int(place * span)] = value
    (adapter / WEIGHTS).write_bytes(data)
    outcome(adapter, base)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ORIGINAL = json.loads((CASES["lora"].directory / CONFIG).read_text())


@quiet
@given(changes=st.dictionaries(st.sampled_from(sorted(ORIGINAL)) | st.text(max_size=8), json_values, max_size=4))
def test_no_value_of_a_configuration_does_worse_than_an_adapter_error(
    adapter: Path, base: LoadedModel, changes: dict[str, Any]
) -> None:
    (adapter / CONFIG).write_text(json.dumps(ORIGINAL | changes))
    outcome(adapter, base)


@quiet
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5))
def test_no_mutation_of_the_configuration_does_worse_than_an_adapter_error(
    adapter: Path, base: LoadedModel, changes: list[tuple[float, int]]
) -> None:
    data = bytearray((CASES["lora"].directory / CONFIG).read_bytes())
    for place, value in changes:
        data[int(place * len(data))] = value
    (adapter / CONFIG).write_bytes(data)
    outcome(adapter, base)


CODE = """
import sys
from infeng_core.errors import AdapterError
from infeng_core.formats.adapters.load import load_adapter
from infeng_core.formats.loader import load
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins
plugins = Plugins.discover(load_config())
model = load(sys.argv[1], plugins.config, plugins, progress=False)
try:
    print(load_adapter(sys.argv[2], model, "int8", providers=plugins).id)
except AdapterError as error:
    print(f"error: {error}")
"""


@pytest.mark.slow
def test_an_adapter_in_the_hubs_cache_loads_offline_by_its_name(tmp_path: Path) -> None:
    case, home = CASES["thin"], tmp_path / "home"
    snapshot = home / "hub" / "models--acme--thin" / "snapshots" / COMMIT
    blobs = home / "hub" / "models--acme--thin" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, name in enumerate((CONFIG, WEIGHTS)):
        shutil.copy(case.directory / name, blobs / f"{number:040x}")
        (snapshot / name).symlink_to(os.path.relpath(blobs / f"{number:040x}", snapshot))
    (home / "hub" / "models--acme--thin" / "refs").mkdir()
    (home / "hub" / "models--acme--thin" / "refs" / "main").write_text(COMMIT)
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    model = case.base.write(tmp_path / "model")

    def say(reference: str) -> str:
        command = [sys.executable, "-P", "-c", CODE, str(model), reference]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=60).stdout.strip()

    assert say("acme/thin") == say(str(case.directory))
    assert say("acme/thick").startswith("error: acme/thick: is not in the local hub cache and HF_HUB_OFFLINE is set")


def test_the_published_qwen_adapter_is_read(third_party: Path) -> None:
    path = third_party / "configs" / "Qwen2.5-0.5B-Instruct.config.json"
    config = parse_config(json.loads(path.read_text()), path)
    adapter = read_peft(third_party / "lora-qwen2.5-0.5b-r8", config)
    assert len(adapter.deltas) == 48 and not adapter.saved and not adapter.biases
    delta = adapter.deltas["model.layers.23.self_attn.v_proj"]
    assert (delta.a.shape, delta.b.shape, delta.scaling) == ((8, 896), (128, 8), 2.0)
    assert np.abs(delta.b).max() > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"alora_invocation_tokens": [5, 1 << 20]}, "has token 1048576, the base has"),
        (
            {"alora_invocation_tokens": [5], "target_modules": ["embed_tokens", "q_proj"]},
            "activated adapters of embeddings",
        ),
    ],
)
def test_an_activated_adapter_that_peft_does_not_define_is_refused(
    adapter: Path, base: LoadedModel, changes: Any, reason: str
) -> None:
    change_config(adapter, **changes)
    said = refused(adapter, base)
    assert reason in said and "alora_invocation_tokens" in said
