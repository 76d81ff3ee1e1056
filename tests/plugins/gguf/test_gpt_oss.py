"""gpt-oss out of GGUF, written with the format's own library: the model that it is out of safetensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import mxfp4_parts
import numpy as np
import pytest
from e2e import harness
from gguf_calls import look_at
from gguf_gpt_oss import Tensors, keys_of, write
from infeng_convert.api import parse_config
from infeng_convert.checkpoints import open_checkpoint
from infeng_gguf.checkpoint import GgufCheckpoint
from mxfp4_parts import CASE
from numpy.typing import NDArray
from safetensors.numpy import save_file

from infeng_core import SamplingParams
from infeng_core.errors import ModelError
from infeng_core.formats.format_choice import BASE, FormatChoice
from infeng_core.formats.quant import builtin_format


@pytest.mark.parametrize("kind", ["MXFP4", "F32"])
def test_a_file_equals_the_published_checkpoint(tmp_path: Path, kind: str) -> None:
    stored, floats = mxfp4_parts.tensors()
    published = open_checkpoint(mxfp4_parts.write(tmp_path / "published", stored))
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", floats, kind))
    wanted = published.config
    assert dataclasses.replace(checkpoint.config, bos_id=wanted.bos_id, eos_ids=wanted.eos_ids) == wanted
    assert wanted.windows == (128, 0) and wanted.rope.kind == "yarn" and not wanted.rope.truncate
    for spec in (*checkpoint.layout.tensors, *checkpoint.layout.vectors):
        for part in spec.parts:
            found, expected = (one.array(part) for one in (checkpoint, published))
            if expected.dtype == np.uint16:
                expected = (expected.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_array_equal(found, expected, err_msg=f"{part.source} {part.begin}")


def test_experts_keep_their_blocks_and_routers_their_precision(tmp_path: Path) -> None:
    stored, floats = mxfp4_parts.tensors()
    published = open_checkpoint(mxfp4_parts.write(tmp_path / "published", stored))
    checkpoint = GgufCheckpoint(write(tmp_path / "m.gguf", floats, rest="Q8_0"))
    used = checkpoint.formats(FormatChoice("int4-g64", {}, frozenset({BASE})), builtin_format)
    experts = {name for name in used if ".experts." in name}
    assert len(experts) == 4 and {used[name] for name in experts} == {"int8-g32"}
    assert used["layers.1.router"] == "bf16" and checkpoint.changes(used) == {}
    for spec in checkpoint.layout.tensors:
        for part in spec.parts if spec.experts else ():
            kept, wanted = (one.kept(part, builtin_format("int8-g32")) for one in (checkpoint, published))
            np.testing.assert_array_equal(
                kept.codes * kept.scales.repeat(32, 1), wanted.codes * wanted.scales.repeat(32, 1)
            )
    made = look_at(tmp_path / "m.gguf", FormatChoice("f32"), builtin_format)
    assert made.why_not == "" and made.stored["MXFP4"] == 6 and made.parameters > made.active_parameters


@pytest.mark.slow
def test_a_file_gives_the_answers_of_its_checkpoint(tmp_path: Path) -> None:
    stored, floats = mxfp4_parts.tensors()
    models = mxfp4_parts.write(tmp_path / "published", stored), write(tmp_path / "m.gguf", floats)
    experts = {"model.formats": {"layers.*.experts.*": "int8-g32"}}
    prompt, found = CASE.prompt[:160].tolist(), []  # beyond the window
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    for model in models:
        with harness.engine(model, harness.F32, experts, rows=160) as engine:
            assert engine.model.formats_used["layers.0.experts.down_proj"] == "int8-g32"
            tokens = engine.generate([prompt], greedy)[0].token_ids
            found.append((harness.logits(engine, prompt, range(160)), list(tokens)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
def test_other_types_give_the_answers_of_a_checkpoint_with_their_values(tmp_path: Path, kind: str) -> None:
    to, rounded = gguf.GGMLQuantizationType[kind], {}
    for name, values in CASE.tensors():
        if name.endswith(("gate_up_proj", "down_proj")):
            straight = np.ascontiguousarray(values.swapaxes(1, 2))
            values = np.ascontiguousarray(gguf.dequantize(gguf.quantize(straight, to), to).swapaxes(1, 2))
        rounded[name] = values
    plain = CASE.write(tmp_path / "plain")
    save_file(rounded, plain / "model.safetensors", metadata={"format": "pt"})
    found = []
    for model in (plain, write(tmp_path / "m.gguf", dict(CASE.tensors()), kind)):
        with harness.engine(model, harness.F32, rows=160) as engine:
            found.append(harness.logits(engine, CASE.prompt[:160], range(160)))
    np.testing.assert_array_equal(found[0], found[1])


def test_the_rope_follows_the_metadata(tmp_path: Path) -> None:
    """A config.json without one has yarn by default, which is not the file's."""
    floats = dict(CASE.tensors())
    unscaled = {key: None for key in keys_of(CASE) if key.startswith("rope.scaling.")}
    assert GgufCheckpoint(write(tmp_path / "a.gguf", floats, "F32", keys=unscaled)).config.rope.kind == "default"
    usual = {"rope.scaling.yarn_beta_fast": None, "rope.scaling.yarn_beta_slow": None}
    rope = GgufCheckpoint(write(tmp_path / "b.gguf", floats, "F32", keys=usual)).config.rope
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, False)


def without(name: str) -> dict[str, Any]:
    return {"change": lambda tensors: tensors.pop(name)}


def other(name: str, make: Callable[[NDArray[Any]], NDArray[Any]]) -> dict[str, Any]:
    return {"change": lambda tensors: tensors.__setitem__(name, np.ascontiguousarray(make(tensors[name])))}


def fused(tensors: Tensors) -> None:
    tensors["blk.0.ffn_gate_up_exps.weight"] = np.concatenate(
        [tensors["blk.0.ffn_gate_exps.weight"], tensors["blk.0.ffn_up_exps.weight"]], axis=1
    )


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no sinks": (without("blk.1.attn_sinks.weight"), r"blk\.1\.attn_sinks\.weight: is missing"),
    "a sink too few": (other("blk.0.attn_sinks.weight", lambda v: v[:-1]), r"attn_sinks\.weight: is \(3,\)"),
    "no bias of experts": (without("blk.1.ffn_up_exps.bias"), r"blk\.1\.ffn_up_exps\.bias: is missing"),
    "biases of one expert": (
        other("blk.0.ffn_down_exps.bias", lambda v: v[0]),
        r"blk\.0\.ffn_down_exps\.bias: is \(64,\), the metadata says \(5, 64\)",
    ),
    "turned biases": (other("blk.0.ffn_gate_exps.bias", lambda v: v.T), r"ffn_gate_exps\.bias: is \(64, 5\)"),
    "no bias of the router": (without("blk.0.ffn_gate_inp.bias"), r"blk\.0\.ffn_gate_inp\.bias: is missing"),
    "no bias of attention": (without("blk.0.attn_output.bias"), r"blk\.0\.attn_output\.bias: is missing"),
    "no experts": (without("blk.0.ffn_gate_exps.weight"), r"blk\.0\.ffn_gate_exps\.weight: is missing"),
    "fused experts beside those": ({"change": fused}, r"blk\.0\.ffn_gate_up_exps\.weight: has no place"),
    "no window": ({"keys": {"attention.sliding_window": None}}, "gpt-oss.attention.sliding_window is missing"),
    "other windows": ({"keys": {"attention.sliding_window_pattern": 4}}, "sliding_window_pattern is 4, which is not"),
    "narrower experts": ({"keys": {"expert_feed_forward_length": 32}}, r"\(5, 64, 64\), .* says \(5, 32, 64\)"),
    "more chosen than there are": ({"keys": {"expert_used_count": 6}}, "expert_used_count is 6.*from 1 to 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_inconsistent_parts_are_refused_by_name(tmp_path: Path, name: str) -> None:
    changes, why = BROKEN[name]
    with pytest.raises(ModelError, match=why) as caught:
        GgufCheckpoint(write(tmp_path / "m.gguf", dict(CASE.tensors()), "F32", **changes))
    assert caught.value.remedy


def test_metadata_may_state_the_default_windows(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", dict(CASE.tensors()), "F32", keys={"attention.sliding_window_pattern": 2})
    assert GgufCheckpoint(path).config.windows == parse_config(CASE.config, "config.json").windows
