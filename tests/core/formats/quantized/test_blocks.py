"""gpt-oss as it is published: experts in MXFP4, which are kept exactly, beside bf16."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens.families import GPT_OSS_PLAIN, FamilyCase
from numpy.typing import NDArray
from quantized_parts import Array, Tensors, save, wide

from infeng_core.errors import ModelError
from infeng_core.formats import choose, load
from infeng_core.formats.checkpoints import Checkpoint, open_checkpoint
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.survey import survey
from infeng_core.plug.assembly import load_config

CASE = GPT_OSS_PLAIN
EXPERTS, HIDDEN, INNER = 5, 64, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FIRST = "model.layers.0.mlp.experts.gate_up_proj"
STACKS = {"gate_up_proj": (2 * INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}

Change = Callable[[Tensors], None]


def meaning(blocks: Array, scales: Array) -> NDArray[np.float32]:
    """Return (experts, outputs, inputs), value by value as the formats are defined."""
    values = np.concatenate([E2M1, -E2M1])
    pairs = np.stack([values[blocks & 15], values[blocks >> 4]], axis=-1)  # (experts, outputs, groups, 16, 2)
    scaled = pairs.reshape(*scales.shape, 32) * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return scaled.reshape(*scales.shape[:2], -1).astype(np.float32)


def tensors(exponents: tuple[int, int] = (121, 126)) -> tuple[Tensors, dict[str, NDArray[np.float32]]]:
    """Return the tensors of a checkpoint in MXFP4 and bf16, and those of one in floats that means the same."""
    random = np.random.default_rng(7)
    stored: Tensors = {}
    floats: dict[str, NDArray[np.float32]] = {}
    for name, values in CASE.tensors():
        last = name.rpartition(".")[2]
        if last in STACKS:
            rows, k = STACKS[last]
            blocks = random.integers(0, 256, (EXPERTS, rows, k // 32, 16), np.uint8)
            scales = random.integers(*exponents, (EXPERTS, rows, k // 32), np.uint8)
            stored |= {f"{name}_blocks": ("U8", blocks), f"{name}_scales": ("U8", scales)}
            floats[name] = np.ascontiguousarray(meaning(blocks, scales).swapaxes(1, 2))
        else:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            stored[name], floats[name] = ("BF16", bits), wide(bits)
    return stored, floats


def write(directory: Path, stored: Tensors, case: FamilyCase = CASE) -> Path:
    case.write(directory)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    said = {"quantization_config": {"modules_to_not_convert": left, "quant_method": "mxfp4"}}
    (directory / "config.json").write_text(json.dumps(case.config | said))
    save(directory / "model.safetensors", stored)
    return directory


def formats(checkpoint: Checkpoint, **asked: object) -> dict[str, str]:
    config = load_config(None, overrides={f"model.{name}": value for name, value in asked.items()})
    return checkpoint.formats(choose(config, builtin_format), builtin_format)


def test_experts_keep_their_values_and_routers_stay_floats(tmp_path: Path) -> None:
    stored, floats = tensors()
    directory = write(tmp_path / "m", stored)
    checkpoint = open_checkpoint(directory)
    made = formats(checkpoint)
    assert {made[f"layers.1.experts.{name}"] for name in STACKS} == {"int8-g32"}
    assert (made["layers.0.router"], made["layers.0.qkv_proj"], made["lm_head"]) == ("bf16", "int8-row", "int8-row")
    model = load(directory, load_config(None), progress=False)
    for layer in range(CASE.config["num_hidden_layers"]):
        for name, (_, k) in STACKS.items():
            source = f"model.layers.{layer}.mlp.experts.{name}"
            expected = floats[source].swapaxes(1, 2)
            np.testing.assert_array_equal(model.matrix(source), expected.reshape(-1, k))
            np.testing.assert_array_equal(model.matrix(f"{source}_bias"), floats[f"{source}_bias"].ravel())
    assert checkpoint.changes(made) == {}


def test_it_computes_what_the_same_numbers_in_floats_do(tmp_path: Path) -> None:
    stored, floats = tensors()
    plain = CASE.write(tmp_path / "floats")
    save(plain / "model.safetensors", {name: ("F32", values) for name, values in floats.items()})
    found = []
    for directory in (plain, write(tmp_path / "m", stored)):
        with harness.engine(directory, harness.F32, {"kv_cache.memory": "1MB"}) as engine:
            found.append(harness.logits(engine, CASE.prompt[:40], range(40)))
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].std() > 0.5


def test_a_survey_says_what_experts_are_stored_in(tmp_path: Path) -> None:
    made = survey(write(tmp_path / "m", tensors()[0]), choose(load_config(None), builtin_format), builtin_format)
    assert (made.why_not, made.method, made.stored["MXFP4"]) == ("", "MXFP4", 2 * CASE.config["num_hidden_layers"])
    assert "U8" not in made.stored and made.rounded_again == {}


def test_blocks_below_the_least_scale_are_rounded_and_counted(tmp_path: Path) -> None:
    stored, floats = tensors((100, 104))
    checkpoint = open_checkpoint(write(tmp_path / "m", stored))
    spec = next(spec for spec in checkpoint.layout.tensors if spec.name == "layers.0.experts.down_proj")
    kept = checkpoint.kept(spec.parts[2], builtin_format("int8-g32"))
    assert kept is not None
    meant = floats["model.layers.0.mlp.experts.down_proj"][2].T
    rounded = kept.codes * np.repeat(kept.scales, 32, axis=1)
    assert (np.abs(rounded - meant) <= 2.0**-25).all() and np.count_nonzero(rounded != meant) > 0
    counted = f"{np.count_nonzero(rounded != meant)} weights"
    assert checkpoint.changes(formats(checkpoint)) == {"MXFP4 -> multiples of 2^-24": counted}


@pytest.mark.parametrize(("exponent", "why"), [(150, "has powers up to 2.23, beyond fp16"), (255, "holds nan")])
def test_a_scale_that_fp16_has_not_is_named(tmp_path: Path, exponent: int, why: str) -> None:
    stored, _ = tensors()
    stored[f"{FIRST}_scales"][1][3, 7, 1] = exponent
    directory = write(tmp_path / "m", stored)
    with pytest.raises(ModelError, match=rf"{FIRST}.*{why}") as caught:
        load(directory, load_config(None), progress=False)
    assert caught.value.remedy
    if exponent == 150:
        wider = load_config(None, overrides={"model.formats": {"layers.*.experts.*": "bf16"}})
        expected = meaning(stored[f"{FIRST}_blocks"][1], stored[f"{FIRST}_scales"][1])
        found = load(directory, wider, progress=False).matrix(FIRST)
        np.testing.assert_array_equal(found, expected.reshape(-1, HIDDEN))


def turned(stored: Tensors) -> None:
    dtype, blocks = stored[f"{FIRST}_blocks"]
    stored[f"{FIRST}_blocks"] = (dtype, blocks.swapaxes(0, 1).copy())


def replaced(name: str, dtype: str, shape: tuple[int, ...]) -> Change:
    return lambda stored: stored.update({name: (dtype, np.zeros(shape, np.uint16 if dtype == "BF16" else np.uint8))})


BROKEN: dict[str, tuple[Change, str]] = {
    "no scales": (lambda stored: stored.pop(f"{FIRST}_scales") and None, rf"{FIRST}_scales is missing"),
    "no blocks": (lambda stored: stored.pop(f"{FIRST}_blocks") and None, rf"{FIRST} is missing"),
    "experts and outputs exchanged": (turned, rf"{FIRST}_blocks is \(128, 5, 2, 16\)"),
    "scales of another size": (replaced(f"{FIRST}_scales", "U8", (5, 128, 1)), rf"{FIRST}_scales is \(5, 128, 1\)"),
    "biases below each other": (
        replaced(f"{FIRST}_bias", "BF16", (640,)),
        r"_bias is \(640,\), config says \(5, 128\)",
    ),
    "sinks of other heads": (replaced("model.layers.0.self_attn.sinks", "BF16", (3,)), r"sinks is \(3,\), config says"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_missing_or_of_another_shape_is_named(tmp_path: Path, case: str) -> None:
    change, why = BROKEN[case]
    stored, _ = tensors()
    change(stored)
    with pytest.raises(ModelError, match=why):
        open_checkpoint(write(tmp_path / "m", stored))
