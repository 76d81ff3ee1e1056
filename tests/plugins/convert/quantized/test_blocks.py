"""gpt-oss as it is published: experts in MXFP4, which are kept exactly, beside bf16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from convert_parts import load
from e2e import harness
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.interfaces.readers import Checkpoint
from infeng_convert.survey import survey
from mxfp4_parts import CASE, HIDDEN, STACKS, meaning, tensors, write
from quantized_parts import Tensors, save

from infeng_core.errors import ModelError
from infeng_core.formats.format_choice import choose
from infeng_core.formats.quant import builtin_format
from infeng_core.plug.assembly import load_config

FIRST = "model.layers.0.mlp.experts.gate_up_proj"

Change = Callable[[Tensors], None]


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


def test_mxfp4_computes_the_same_as_equal_floats(tmp_path: Path) -> None:
    stored, floats = tensors()
    plain = CASE.write(tmp_path / "floats")
    save(plain / "model.safetensors", {name: ("F32", values) for name, values in floats.items()})
    found = []
    for directory in (plain, write(tmp_path / "m", stored)):
        with harness.engine(directory, harness.F32, {"kv_cache.memory": "1MB"}) as engine:
            found.append(harness.logits(engine, CASE.prompt[:40], range(40)))
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].std() > 0.5


def test_a_survey_names_the_stored_type_of_experts(tmp_path: Path) -> None:
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
def test_a_scale_beyond_fp16_is_named(tmp_path: Path, exponent: int, why: str) -> None:
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
def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path, case: str) -> None:
    change, why = BROKEN[case]
    stored, _ = tensors()
    change(stored)
    with pytest.raises(ModelError, match=why):
        open_checkpoint(write(tmp_path / "m", stored))
