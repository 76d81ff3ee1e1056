"""Quantized checkpoints: their values, the parts kept unchanged, and the parts rounded again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantized_parts as parts
from convert_parts import load
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.kept_integers import NEAREST
from infeng_convert.survey import survey
from quantized_parts import Kind, Model, Tensors

from infeng_core import Engine
from infeng_core.formats.format_choice import choose
from infeng_core.formats.quant import BUILTIN, builtin_format
from infeng_core.formats.tensors import LoadedModel
from infeng_core.plug.assembly import load_config
from infeng_core.requests.request import SamplingParams

EIGHT = "int8-g32" if "int8-g32" in BUILTIN else NEAREST  # for 8 bits in groups
LINEARS = 14


def loaded(directory: Path, **settings: Any) -> LoadedModel:
    config = load_config(None, overrides={name.replace("__", "."): value for name, value in settings.items()})
    return load(directory, config, progress=False)


def formats(checkpoint: Checkpoint, **asked: Any) -> dict[str, str]:
    config = load_config(None, overrides={f"model.{name}": value for name, value in asked.items()})
    return checkpoint.formats(choose(config, builtin_format), builtin_format)


def gptq(directory: Path, kind: Kind, version: int = 1, **more: Any) -> Model:
    pack = lambda weight, kind: parts.gptq(weight, kind, version)  # noqa: E731
    return parts.write(directory, parts.gptq_scheme(kind, version), pack, kind, **more)


def gptq2(directory: Path, kind: Kind) -> Model:
    return gptq(directory, kind, 2)


def awq(directory: Path, kind: Kind) -> Model:
    return parts.write(directory, parts.awq_scheme(kind), parts.awq, kind)


def packed(directory: Path, kind: Kind) -> Model:
    return parts.write(directory, parts.compressed_scheme(kind), parts.packed, kind)


def bytewise(directory: Path, kind: Kind) -> Model:
    return parts.write(directory, parts.compressed_scheme(kind, "int-quantized"), parts.bytewise, kind)


def auto_round(packing: str, version: int) -> Callable[[Path, Kind], Model]:
    def write(directory: Path, kind: Kind) -> Model:
        pack: parts.Pack = parts.awq if "awq" in packing else lambda weight, kind: parts.gptq(weight, kind, version)
        return parts.write(directory, parts.auto_round_scheme(kind, packing), pack, kind)

    return write


EXACT = {
    "gptq-g32": (gptq, Kind(group=32), "int4-g32"),
    "gptq-g64": (gptq, Kind(group=64), "int4-g64"),
    "gptq-g128": (gptq, Kind(group=128), "int4-g64"),
    "gptq-row": (gptq, Kind(group=-1), "int4-g64"),
    "gptq-8-row": (gptq, Kind(bits=8, group=-1, lowest=False), "int8-row"),
    "gptq-v2": (gptq2, Kind(), "int4-g64"),
    "packed-g128": (packed, Kind(group=128, scale="BF16"), "int4-g64"),
    "packed-g32": (packed, Kind(group=32), "int4-g32"),
    "packed-8-row": (packed, Kind(bits=8, group=-1, scale="BF16", lowest=False), "int8-row"),
    "bytes-row": (bytewise, Kind(bits=8, group=-1, scale="BF16", lowest=False), "int8-row"),
    "auto-round": (auto_round("auto_round:auto_gptq", 1), Kind(), "int4-g64"),
    "auto-round-2": (auto_round("auto_round", 2), Kind(), "int4-g64"),
    "auto-round-awq": (auto_round("auto_round:auto_awq", 0), Kind(group=128), "int4-g64"),
    "awq-row": (awq, Kind(sym=False, group=-1), "int4-a256"),
    "packed-asym-row": (packed, Kind(sym=False, group=-1), "int4-a256"),
}
ROUNDED = {
    "gptq-asym": (gptq, Kind(sym=False), NEAREST, "int4-g64 with zero points"),
    "gptq-v2-asym": (gptq2, Kind(sym=False, group=32), NEAREST, "int4-g32 with zero points"),
    "gptq-8-asym": (gptq, Kind(bits=8, sym=False), NEAREST, "int8-g64 with zero points"),
    "gptq-order": (gptq, Kind(desc_act=True), NEAREST, "int4-g64 in activation order"),
    "gptq-both": (gptq, Kind(desc_act=True, sym=False), NEAREST, "int4-g64 with zero points in activation order"),
    "gptq-odd": (gptq, Kind(group=16), NEAREST, "int4-g16"),
    "awq": (awq, Kind(sym=False), NEAREST, "int4-g64 with zero points"),
    "packed-asym": (packed, Kind(sym=False), NEAREST, "int4-g64 with zero points"),
    "packed-order": (packed, Kind(desc_act=True), NEAREST, "int4-g64 in activation order"),
    "bytes-asym": (bytewise, Kind(bits=8, group=-1, sym=False), NEAREST, "int8 per row with zero points"),
    "auto-round-asym": (auto_round("auto_round:gptqmodel", 2), Kind(sym=False), NEAREST, "int4-g64 with zero points"),
}


MORE = {"gptq-g128", "gptq-row", "packed-g32", "packed-8-row", "auto-round"}  # of what others prove as well
SOME = [pytest.param(case, marks=pytest.mark.nightly) if case in MORE else case for case in EXACT]


@pytest.mark.parametrize("case", SOME)
def test_values_that_a_format_holds_are_kept_unchanged(tmp_path: Path, case: str) -> None:
    write, kind, format = EXACT[case]
    model = write(tmp_path / "m", kind)
    checkpoint = open_checkpoint(model.directory)
    made = formats(checkpoint)
    assert {one for name, one in made.items() if name.startswith("layers.")} == {format}
    assert (made["embed"], made["lm_head"]) == ("int8-row", "int8-row")
    found = loaded(model.directory)
    for name, weight in model.quantized.items():
        assert np.array_equal(found.matrix(name), weight.values()), name
    assert checkpoint.changes(made) == {}


@pytest.mark.parametrize("case", ROUNDED)
def test_values_that_no_format_holds_are_rounded_again_and_reported(tmp_path: Path, case: str) -> None:
    write, kind, format, label = ROUNDED[case]
    model = write(tmp_path / "m", kind)
    checkpoint = open_checkpoint(model.directory)
    for spec in checkpoint.layout.tensors:
        for part in spec.parts:
            values = checkpoint.array(part)
            assert np.array_equal(values.astype(np.float32), model.weights[part.source]), part.source
            assert part.source not in model.quantized or checkpoint.kept(part, BUILTIN[format]) is None
    made = formats(checkpoint)
    left = NEAREST if kind.bits == 8 and kind.group > 0 else "int8-row"  # floats are no coarser than what is beside
    assert set(made.values()) == {format, left} and made["embed"] == left
    assert checkpoint.changes(made) == {f"{label} -> {format}": f"{LINEARS} tensors"}
    assert checkpoint.stored()[label] == LINEARS and len(checkpoint.stored()) == 2


@pytest.mark.parametrize("write", [awq, gptq, gptq2])
def test_zero_points_of_groups_as_long_as_a_superblock_are_minima(
    tmp_path: Path, write: Callable[[Path, Kind], Model]
) -> None:
    model = write(tmp_path / "m", Kind(sym=False, group=128))
    checkpoint = open_checkpoint(model.directory)
    made = formats(checkpoint)
    # 128 inputs are one group and whole rows, 256 are two groups.
    assert {made[f"layers.0.{name}"] for name in ("qkv_proj", "o_proj", "gate_up_proj")} == {"int4-a256"}
    assert made["layers.0.down_proj"] == "int4-a128" and checkpoint.changes(made) == {}
    found = loaded(model.directory)
    for name, weight in model.quantized.items():
        assert np.array_equal(found.matrix(name), weight.values()), name


def test_scales_beside_zero_points_that_are_no_values_of_fp16_are_rounded_again(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        name = "model.layers.1.mlp.down_proj.scales"
        tensors[name] = ("BF16", parts.bf16(np.full(tensors[name][1].shape, 3e-8, np.float32)))

    kind = Kind(sym=False, group=128, scale="BF16")
    model = parts.write(tmp_path / "m", parts.awq_scheme(kind), parts.awq, kind, change=change)
    made = formats(open_checkpoint(model.directory))
    assert (made["layers.1.down_proj"], made["layers.0.down_proj"]) == (NEAREST, "int4-a128")


def test_eight_bits_in_groups_take_the_format_that_has_them(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(gptq(tmp_path / "m", Kind(bits=8)).directory)
    made = formats(checkpoint)
    assert made["layers.0.o_proj"] == EIGHT
    rounded = {f"int8-g64 -> {NEAREST}": f"{LINEARS} tensors"}
    assert checkpoint.changes(made) == ({} if EIGHT == "int8-g32" else rounded)


def test_a_code_of_128_below_zero_becomes_the_next_one_and_is_counted(tmp_path: Path) -> None:
    model = bytewise(tmp_path / "m", Kind(bits=8, group=-1, scale="BF16"))
    found, low = loaded(model.directory), 0
    assert found.formats_used["layers.1.down_proj"] == "int8-row"
    for name, weight in model.quantized.items():
        low += int((weight.codes == 0).sum())
        weight.codes = np.maximum(weight.codes, 1)
        assert np.array_equal(found.matrix(name), weight.values()), name
    checkpoint = open_checkpoint(model.directory)
    for spec in checkpoint.layout.tensors:
        for part in spec.parts:
            checkpoint.kept(part, BUILTIN["int8-row"])
    assert low > 100 and checkpoint.changes(formats(checkpoint)) == {"code -128 -> -127": f"{low} weights"}


def test_scales_that_are_no_values_of_fp16_keep_a_format_from_being_exact(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        name = "model.layers.1.mlp.down_proj.weight_scale"
        tensors[name] = ("BF16", parts.bf16(np.full(tensors[name][1].shape, 3e-8, np.float32)))

    kind = Kind(scale="BF16")
    model = parts.write(tmp_path / "m", parts.compressed_scheme(kind), parts.packed, kind, change=change)
    made = formats(open_checkpoint(model.directory))
    assert (made["layers.1.down_proj"], made["layers.0.down_proj"]) == (NEAREST, "int4-g64")


def fp8(scale: str, shape: Callable[[int, int], tuple[int, ...]]) -> parts.Pack:
    """Store bytes in e4m3 and scales of ``shape``; the weight's codes are the bytes."""

    def pack(weight: parts.Weight, kind: Kind) -> Tensors:
        rng = np.random.default_rng(weight.codes.shape[0])
        sizes = (0.5 + rng.random(shape(*weight.codes.shape))).astype(np.float32) / 4096
        return {"weight": ("F8_E4M3", weight.codes.astype(np.uint8)), scale: ("F32", sizes)}

    return pack


def e4m3(byte: int) -> float:
    """Return what a byte means: OCP 8-bit floating point, table 1."""
    sign, exponent, mantissa = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


BLOCK = [64, 32]
FLOATS: dict[str, tuple[dict[str, Any], str, Callable[[int, int], tuple[int, ...]]]] = {
    "tensor": ({"strategy": "tensor"}, "weight_scale", lambda n, k: (1,)),
    "scalar": ({"strategy": "tensor"}, "weight_scale", lambda n, k: ()),
    "row": ({"strategy": "channel"}, "weight_scale", lambda n, k: (n, 1)),
    "block": ({"strategy": "block", "block_structure": BLOCK}, "weight_scale", lambda n, k: (n // 64, k // 32)),
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": BLOCK}, "weight_scale_inv",
            lambda n, k: (n // 64, k // 32)),
}  # fmt: skip


@pytest.mark.parametrize("case", FLOATS)
def test_fp8_is_read_with_scales_of_every_kind(tmp_path: Path, case: str) -> None:
    settings, scale, shape = FLOATS[case]
    kind, table = Kind(bits=8, group=-1), np.array([e4m3(byte) for byte in range(256)])
    scheme = settings if case == "fp8" else parts.compressed_scheme(
        kind, "float-quantized", type="float", **settings)  # fmt: skip
    stored: dict[str, Any] = {}

    def change(tensors: Tensors) -> None:
        for name, (dtype, values) in tensors.items():
            if dtype == "F8_E4M3":
                values[values & 127 == 127] = 0
                stored[name] = values, tensors[name.replace("weight", scale)][1]
        tensors["model.layers.0.self_attn.o_proj.input_scale"] = ("F32", np.ones(1, np.float32))
        tensors["model.layers.0.self_attn.k_scale"] = ("F32", np.ones(1, np.float32))

    model = parts.write(tmp_path / "m", scheme, fp8(scale, shape), kind, change=change)
    checkpoint = open_checkpoint(model.directory)
    for spec in checkpoint.layout.tensors:
        for part in spec.parts:
            if part.source in stored:
                bytes, scales = stored[part.source]
                n, k = bytes.shape
                if scales.ndim == 2:
                    scales = np.repeat(np.repeat(scales, n // scales.shape[0], 0), k // scales.shape[1], 1)
                wanted = table[bytes].astype(np.float32) * scales
                assert np.array_equal(checkpoint.array(part), wanted), part.source
    made = formats(checkpoint)
    assert checkpoint.changes(made) == {f"fp8-e4m3 -> {NEAREST}": f"{LINEARS} tensors"}


def test_fp8_that_is_no_number_names_its_place(tmp_path: Path) -> None:
    kind = Kind(bits=8, group=-1)
    scheme = parts.compressed_scheme(kind, "float-quantized", type="float", strategy="tensor")

    def change(tensors: Tensors) -> None:
        for dtype, values in tensors.values():
            if dtype == "F8_E4M3":
                values[:] = 56
        tensors["model.layers.1.mlp.up_proj.weight"][1][3, 5] = 255

    model = parts.write(tmp_path / "m", scheme, fp8("weight_scale", lambda n, k: (1,)), kind, change=change)
    with pytest.raises(Exception, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight: holds nan at row 3, column 5"):
        loaded(model.directory)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return gptq(tmp_path_factory.mktemp("sound") / "m", Kind())


@pytest.mark.slow
def test_a_float_format_reproduces_the_quantized_weights(sound: Model, tmp_path: Path) -> None:
    directory = parts.plain(sound, tmp_path / "plain")
    answers = []
    for source in (sound.directory, directory):
        over = {"model.format": "f32", "threads.count": 1, "kv_cache.dtype": "f32"}
        with Engine(source, overrides=over) as engine:
            answers.append(
                engine.generate(["the quick brown"], SamplingParams(temperature=0.0, max_tokens=12, logprobs=3))
            )
    assert answers[0][0].token_ids == answers[1][0].token_ids
    assert answers[0][0].logprobs == answers[1][0].logprobs


def test_a_requested_format_outranks_the_checkpoints(sound: Model) -> None:
    checkpoint = open_checkpoint(sound.directory)
    asked = formats(checkpoint, format="int4-g32")
    assert (asked["layers.0.o_proj"], asked["embed"]) == ("int4-g32", "int8-row")
    assert checkpoint.changes(asked) == {}  # the same scale for two groups
    some = formats(checkpoint, formats={"*.down_proj": "bf16"})
    assert (some["layers.0.down_proj"], some["layers.0.o_proj"]) == ("bf16", "int4-g64")
    assert checkpoint.changes(some) == {"int4-g64 -> bf16": "2 tensors"}


def test_a_requested_format_is_another_conversion(sound: Model) -> None:
    kept, asked = loaded(sound.directory), loaded(sound.directory, model__format="int4-g64")
    assert kept.id != asked.id and asked.formats_used["lm_head"] == "int4-g64"


def test_a_joined_tensor_takes_a_format_that_suits_all_of_its_parts(tmp_path: Path) -> None:
    model = gptq(tmp_path / "m", Kind(), chosen=lambda name: parts.is_linear(name) and "0.self_attn.v" not in name)
    made = formats(open_checkpoint(model.directory))
    assert made["layers.0.qkv_proj"] == NEAREST and made["layers.1.qkv_proj"] == "int4-g64"


def test_a_quantized_head_is_not_tied(tmp_path: Path) -> None:
    model = gptq(tmp_path / "m", Kind(), chosen=lambda name: parts.is_linear(name) or name == "lm_head.weight")
    path = model.directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    found = loaded(model.directory)
    assert not found.config.tie_embeddings and found.formats_used["lm_head"] == "int4-g64"
    assert np.array_equal(found.matrix("lm_head.weight"), model.weights["lm_head.weight"])


def test_zero_biases_are_ignored(tmp_path: Path) -> None:
    def change(value: float) -> Callable[[Tensors], object]:
        return lambda tensors: tensors.update(
            {"model.layers.0.mlp.up_proj.bias": ("F16", np.full(256, value, np.float16))}
        )

    assert open_checkpoint(gptq(tmp_path / "zero", Kind(), change=change(0.0)).directory)
    with pytest.raises(Exception, match=r"up_proj\.bias has no place in this model, and is not zero"):
        open_checkpoint(gptq(tmp_path / "one", Kind(), change=change(1.0)).directory)


def test_fused_rows_are_cut_apart(tmp_path: Path) -> None:
    kind, rng = Kind(group=32), np.random.default_rng(1)
    extra = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
    weights: dict[str, Any] = {}

    def change(tensors: Tensors) -> None:
        for layer in range(parts.SHAPE.layers):
            for module, rows, split in (("self_attn.qkv_proj", 256, "qkv"), ("mlp.gate_up_proj", 512, ("gate", "up"))):
                name = f"model.layers.{layer}.{module}"
                for one in split:
                    block = module.split(".", maxsplit=1)[0]
                    for key in [key for key in tensors if key.startswith(f"model.layers.{layer}.{block}.{one}_proj.")]:
                        del tensors[key]
                weight = kind.draw(rows, 128, rng)
                weights[f"{name}.weight"] = weight.values()
                tensors |= {f"{name}.{part}": value for part, value in parts.gptq(weight, kind, 1).items()}

    model = gptq(tmp_path / "m", kind, shape=replace(parts.SHAPE, extra=extra), change=change)
    found = loaded(model.directory)
    assert found.config.family == "phi3" and found.formats_used["layers.0.qkv_proj"] == "int4-g32"
    for name, values in weights.items():
        assert np.array_equal(found.matrix(name), values), name


def test_the_text_model_of_a_multimodal_one_is_found(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.replace("model.", "model.language_model.", 1)] = tensors.pop(name)

    model = gptq(tmp_path / "m", Kind(desc_act=True), change=change)
    path = model.directory / "config.json"
    text = json.loads(path.read_text())
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    outer["quantization_config"] = text.pop("quantization_config")
    path.write_text(json.dumps(outer | {"text_config": text | {"model_type": "mistral", "architectures": None}}))
    checkpoint = open_checkpoint(model.directory)
    part = checkpoint.layout.tensors[1].parts[0]
    assert "model.language_model.layers.0.self_attn.q_proj.qweight" in checkpoint.place(part)
    assert np.array_equal(checkpoint.array(part), model.weights[part.source])
    assert checkpoint.stored() == {"int4-g64 in activation order": LINEARS, "F16": 7}


def test_a_survey_names_the_method_and_what_is_stored(sound: Model) -> None:
    config = load_config(None)
    found = survey(sound.directory, choose(config, builtin_format), builtin_format)
    assert (found.kind, found.method, found.why_not) == ("Hugging Face", "GPTQ", "")
    assert found.stored == {"int4-g64": LINEARS, "F16": 7} and not found.rounded_again
    assert found.formats["int4-g64"][0] == "layers.*.qkv_proj"
