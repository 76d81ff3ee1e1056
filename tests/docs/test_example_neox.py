"""The family of docs/examples/family_neox: its config.json, its tensors, and its logits against transformers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import harness
from e2e.harness import VECTOR, settings
from goldens import oracle
from goldens.neox import NEOX, NEOX_20B, NEOX_CASES, NEOX_SEQUENTIAL, PYTHIA_70M, NeoXCase
from goldens.shapes import GREEDY_STEPS
from infeng_convert.api import parse_config
from safetensors.numpy import load_file, save_file

from infeng_core import Engine, SamplingParams, cli
from infeng_core.errors import AdapterError, ModelError
from infeng_core.formats.adapters.artifact import shapes_of
from infeng_core.formats.adapters.target_modules import target_modules
from infeng_core.models import families
from infeng_core.models.config import ModelConfig
from infeng_core.models.ops import Activate, Bias, Graph, LayerNorm, Linear, Op, Rope
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config
from infeng_core.plug.hookspecs import BACKENDS, MODEL_FAMILIES
from infeng_core.plug.manager import Plugins

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "family_neox" / "infeng_neox" / "plugin.yaml"
GIVEN = {"plugins.paths": [str(PLUGIN)]}
GREEDY = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, ignore_eos=True)
MARGIN = 10  # times the tolerance
ADAPTED = ("attention.dense", "mlp.dense_4h_to_h")

case = pytest.mark.parametrize("case", NEOX_CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both families, and none that stays."""
    monkeypatch.setattr(families, "added", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    layout.cache_clear()
    families.add(dict(Plugins.discover(load_config(overrides=GIVEN)).each(MODEL_FAMILIES)))
    yield
    layout.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "infeng_neox"]:
        sys.modules.pop(name)


def engine(directory: Path, case: NeoXCase, implementation: str = VECTOR, **more: Any) -> Engine:
    return harness.engine(directory, settings(case, implementation), GIVEN, more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------- config.json


def read(config: dict[str, Any], **changes: Any) -> ModelConfig:
    return parse_config(config | changes, "config.json")


@pytest.mark.parametrize(
    ("config", "activation", "parameters"), [(PYTHIA_70M, "gelu", 70426624), (NEOX_20B, "gelu_tanh", 20554567680)]
)
def test_published_files_are_read_in_silence_and_give_the_parameters_of_the_release(
    config: dict[str, Any], activation: str, parameters: int, capfd: pytest.CaptureFixture[str]
) -> None:
    found = read(config)
    assert (found.family, found.activation, found.rms_eps) == ("gpt_neox", activation, 1e-5)
    assert (found.rope.theta, found.rope.partial, found.kv_heads) == (10000.0, 0.25, found.heads)
    assert found.attention_bias and found.mlp_bias and not found.tie_embeddings
    made = layout(found)
    matrices = sum(part.rows * spec.k for spec in made.tensors for part in spec.parts)
    assert matrices + sum(part.rows for spec in made.vectors for part in spec.parts) == parameters
    assert capfd.readouterr().err == ""


def test_a_file_of_transformers_5_says_the_same_as_one_before() -> None:
    named = {key: value for key, value in PYTHIA_70M.items() if not key.startswith("rotary")}
    rope = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}
    assert read(named) == read(PYTHIA_70M)
    assert read(named, rope_parameters=rope) == read(PYTHIA_70M, rotary_emb_base=5000, rotary_pct=0.5)
    assert read(PYTHIA_70M, rope_theta=10000.0, partial_rotary_factor=0.25) == read(PYTHIA_70M)
    assert read(named, rope_scaling={"rope_type": "linear", "factor": 2.0}).rope.partial == 0.25


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 500.0}, "rotary_emb_base is 10000, and rope_theta is 500: they mean the same"),
        ({"rope_parameters": {"partial_rotary_factor": 1.0}}, "rotary_pct is 0.25, and partial_rotary_factor is 1"),
        ({"rotary_pct": 1.5}, "rotary_pct is 1.5, it must be from 0 to 1"),
        ({"rotary_pct": 0.0}, "head_dim is 64, of which 0 are rotated"),
        ({"num_key_value_heads": 2}, "num_attention_heads is 8, and each head has its q, k and v"),
        ({"num_attention_heads": 64}, "which makes heads of 8: only multiples of 16 are run"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', supported are"),
        ({"use_parallel_residual": "no"}, "use_parallel_residual is 'no', it must be true or false"),
    ],
)
def test_what_the_family_does_not_run_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read(PYTHIA_70M, **changes)


def test_the_kind_of_residuals_is_a_field_of_the_familys_own() -> None:
    parallel, sequential = read(PYTHIA_70M), read(PYTHIA_70M, use_parallel_residual=False)
    assert sequential == replace(parallel, own={"parallel_residual": False})
    assert sequential.family == "gpt_neox" and parallel.own == {"parallel_residual": True}
    assert "own" not in parallel.to_dict() and sequential.to_dict()["own"] == {"parallel_residual": False}
    assert ModelConfig.from_dict(sequential.to_dict(), "model.json") == sequential
    assert shapes_of(sequential) != shapes_of(parallel), "an adapter of one kind would fit the other"


def test_a_model_that_was_converted_under_the_second_name_is_sequential_and_keeps_its_id() -> None:
    then = {**read(PYTHIA_70M).to_dict(), "family": "gpt_neox_sequential"}
    config = ModelConfig.from_dict(then, "model.json")
    assert config.own == {"parallel_residual": False} and config.to_dict() == then
    now = families.families()["gpt_neox"].graph(read(PYTHIA_70M, use_parallel_residual=False))
    assert families.families()["gpt_neox_sequential"].graph(config) == now
    assert "gpt_neox (GPTNeoXForCausalLM)" in families.describe()
    assert "sequential" not in families.describe()


# ------------------------------------------------------------------------------------------------------------ layout


def test_the_rows_of_each_head_go_to_its_columns_of_q_of_k_and_of_v() -> None:
    config = read(NEOX.config)
    spec = next(one for one in layout(config).tensors if one.name == "layers.1.qkv_proj")
    assert {part.source for part in spec.parts} == {"gpt_neox.layers.1.attention.query_key_value.weight"}
    place = np.full(3 * config.hidden, -1)
    for part in spec.parts:
        place[part.span] = part.columns()
    heads = place.reshape(config.heads, 3, config.head_dim)  # a head has its q, its k and its v
    np.testing.assert_array_equal(heads.transpose(1, 0, 2).reshape(-1), np.arange(3 * config.hidden))


# ------------------------------------------------------------------------------------------------------------ logits


@pytest.mark.parametrize("implementation", [VECTOR, pytest.param("reference", marks=pytest.mark.slow)])
@case
def test_logits_and_greedy_tokens_equal_transformers(implementation: str, case: NeoXCase, tmp_path: Path) -> None:
    golden = oracle.golden(case)
    with engine(case.write(tmp_path / "model"), case, implementation) as made:
        logits = harness.logits(made, golden["prompt"], golden["positions"], chunks=3)
        [completion] = made.generate([golden["prompt"].tolist()], GREEDY)
    assert logits.std() >= 1
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE)
    assert list(completion.token_ids) == golden["greedy"].tolist()


def test_a_conversion_to_integers_gives_the_same_bytes_by_every_kernel_and_keeps_its_own_field(tmp_path: Path) -> None:
    source, native = NEOX_SEQUENTIAL.write(tmp_path / "model"), tmp_path / "native"
    words = ["convert", str(source), str(native), "--format", "int8-row", "--set", f"plugins.paths={PLUGIN}"]
    assert cli.main(words) == 0
    found = []
    for implementation in (VECTOR, "reference"):
        stored = {"model.format": "int8-row", "kv_cache.dtype": "int8", "kv_cache.memory": "1MB"}
        with engine(native, NEOX_SEQUENTIAL, implementation, **stored) as made:
            assert made.model.config.own == {"parallel_residual": False}
            found.append(harness.logits(made, NEOX_SEQUENTIAL.prompt, range(0, 300, 5), chunks=2))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.corrcoef(found[0][0], oracle.golden(NEOX_SEQUENTIAL)["logits"][0])[0, 1] > 0.99


def test_stored_masks_and_rotary_tables_are_not_read_and_not_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = NEOX.write(tmp_path / "model")
    buffers = {
        "bias": np.tril(np.ones((1, 1, 8, 8), np.bool_)),
        "masked_bias": np.array(-1e9, np.float32),
        "rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    named = {f"gpt_neox.layers.{i}.attention.{name}": each for i in range(2) for name, each in buffers.items()}
    save_file({**load_file(directory / "model.safetensors"), **named}, directory / "model.safetensors")
    with engine(directory, NEOX) as made:
        assert len(made.generate([NEOX.prompt.tolist()], replace(GREEDY, max_tokens=2))[0].token_ids) == 2
    assert "ignored" not in capfd.readouterr().err


def test_an_adapter_equals_the_merged_weights(tmp_path: Path) -> None:
    plain, merged = NEOX.write(tmp_path / "model"), NEOX.write(tmp_path / "merged")
    weights, random = load_file(plain / "model.safetensors"), np.random.RandomState(3)
    tensors = {}
    for name in [f"gpt_neox.layers.{i}.{module}" for i in range(2) for module in ADAPTED]:
        rows, columns = weights[f"{name}.weight"].shape
        a, b = ((random.standard_normal(shape) * 0.2).astype(np.float32) for shape in ((4, columns), (rows, 4)))
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + b @ a
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": list(ADAPTED)}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    logits = []
    for directory, adapters in ((plain, [(adapter, 1.0)]), (merged, [])):
        with engine(directory, NEOX) as made:
            given = harness.applied(made, adapters)
            logits.append(harness.logits(made, NEOX.prompt, range(0, 300, 7), adapters=given))
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=oracle.TOLERANCE)
    assert np.abs(logits[0][-1] - logits[1][0]).max() > 1


def test_an_adapter_of_the_joined_matrix_is_refused_since_it_has_too_many_parts(tmp_path: Path) -> None:
    hidden = NEOX.config["hidden_size"]
    tensors = {}
    for i in range(2):
        name = f"base_model.model.gpt_neox.layers.{i}.attention.query_key_value"
        tensors |= {f"{name}.lora_A.weight": np.ones((4, hidden), np.float32)}
        tensors |= {f"{name}.lora_B.weight": np.ones((3 * hidden, 4), np.float32)}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["query_key_value"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    with engine(NEOX.write(tmp_path / "model"), NEOX) as made, pytest.raises(AdapterError, match="9 projections"):
        harness.applied(made, [(tmp_path, 1.0)])


def test_adapters_find_the_modules_under_the_names_of_the_checkpoint() -> None:
    assert target_modules(read(NEOX.config)).modules() >= {
        "gpt_neox.layers.0.attention.query_key_value",
        "gpt_neox.layers.0.mlp.dense_h_to_4h",
        "embed_out",
    }


# ------------------------------------------------------------------------------------------------------------- terms


def _activated(op: Op, function: str) -> Op:
    if not isinstance(op, Linear):
        return op
    return replace(op, steps=tuple(Activate(function) if isinstance(one, Activate) else one for one in op.steps))


def _unbiased(op: Op, name: str) -> Op:
    if not isinstance(op, Linear) or not op.weight.endswith(name):
        return op
    return replace(op, steps=tuple(one for one in op.steps if not isinstance(one, Bias)))


def _rope(op: Op, **changes: float) -> Op:
    return replace(op, rope=replace(op.rope, **changes)) if isinstance(op, Rope) else op  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[Op], Op]] = {
    "whole heads rotated": lambda op: _rope(op, partial=1.0),
    "theta of another model": lambda op: _rope(op, theta=12000.0),
    "silu for gelu": lambda op: _activated(op, "silu"),
    "the other gelu": lambda op: _activated(op, "gelu_tanh"),
    "norms of another epsilon": lambda op: replace(op, eps=op.eps / 10) if isinstance(op, LayerNorm) else op,
    "norms with another bias": lambda op: replace(op, bias="norm.bias") if isinstance(op, LayerNorm) else op,
    "biases of q, k, v left out": lambda op: _unbiased(op, ".qkv_proj"),
    "biases behind attention left out": lambda op: _unbiased(op, ".o_proj"),
    "biases before the gelu left out": lambda op: _unbiased(op, ".up_proj"),
    "biases behind the MLP left out": lambda op: _unbiased(op, ".down_proj"),
}


def _graphs(config: ModelConfig) -> Iterator[tuple[str, Graph]]:
    right = families.families()[config.family].graph(config)
    for name, change in CHANGES.items():
        yield name, replace(right, ops=tuple(map(change, right.ops)))
    sequential = replace(config, own={"parallel_residual": False})
    yield "the other residuals", families.families()["gpt_neox"].graph(sequential)


@pytest.mark.slow
def test_removing_any_term_changes_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = oracle.golden(NEOX)
    with engine(NEOX.write(tmp_path / "model"), NEOX, **{"adapters.max_resident": 0}) as made:
        backend, family = made.plugins.get(BACKENDS, "native"), families.families()["gpt_neox"]
        for name, graph in list(_graphs(made.model.config)):
            changed = type("Changed", (), {"weights": family.weights, "graph": lambda _, config, graph=graph: graph})
            monkeypatch.setitem(families.added, "gpt_neox", changed())
            made.executable.close()
            made.executable = backend.compile(made.model, made.config, made.limits, made.selector)
            difference = np.abs(harness.logits(made, golden["prompt"], golden["positions"]) - golden["logits"]).max()
            least = oracle.TOLERANCE if name == "the other gelu" else MARGIN * oracle.TOLERANCE
            assert difference > least, name
