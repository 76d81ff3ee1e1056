"""Experts are fitted to the rows that the router sends to each, in equal bytes for every number of threads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens.families import QWEN2_MOE, QWEN3_MOE
from infeng_calibrate.forward import Forward
from infeng_calibrate.routing import Routed, chosen
from infeng_calibrate.sensitivity import divergence, sensitivities
from infeng_calibrate.stages import stages
from infeng_calibrate.statistics import FEW, Statistics, moments
from infeng_convert.api import parse_config
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.packing import gather_vector, pack_tensor
from infeng_convert.profiles import PROFILES, allocate, is_inner, priors
from numpy.typing import NDArray

from infeng_core.cli import main
from infeng_core.formats.quant import builtin_format
from infeng_core.formats.shards import aligned_bytes
from infeng_core.formats.tensors import PackedTensor
from infeng_core.kernels.choice import Selector
from infeng_core.models.families import families
from infeng_core.models.ops import ExpertLinear, Route
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_MOE.write(tmp_path_factory.mktemp("source") / "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = np.random.default_rng(1).integers(3, 271, 420)
    path.write_text(" ".join(f"t{word}" for word in words), encoding="utf-8")
    return path


def begun(source: Path, texts: list[NDArray[np.int32]]) -> Forward:
    config = load_config(overrides={"threads.count": 2})
    plugins = Plugins.discover(config)
    return Forward(open_checkpoint(source).config, texts, config, Selector(plugins, config, plugins.cpu))


def test_values_of_experts_are_computed_again_by_the_stage_that_reads_them() -> None:
    graph = families()["qwen2_moe"].graph(parse_config(QWEN2_MOE.config, "config.json"))
    found = stages(graph)[2:9]
    assert [(stage.linear.weight.partition(".0.")[2], stage.gives) for stage in found if stage.linear] == [
        ("o_proj", ("hidden", "normed")),
        ("router", ("router",)),
        ("shared.gate_up_proj", ("shared_gated",)),
        ("shared.down_proj", ("shared",)),
        ("shared_gate", ("shared_gate",)),
        ("experts.gate_up_proj", ()),
        ("experts.down_proj", ("hidden", "normed")),
    ]
    assert [stage.shows for stage in found] == ["", "", "", "", "", "expert_gated", ""]
    assert [tuple(map(type, stage.again)) for stage in found[-2:]] == [(Route,), (Route, ExpertLinear)]
    assert all(name not in stage.takes for stage in found for name in ("routed", "expert_gated", "expert_out"))


def test_experts_of_a_row_have_the_largest_logits_with_ties_to_the_first() -> None:
    logits = np.array([[1, 3, 3, 2], [0, -1, 0, 0]], np.float32)
    assert chosen(logits, 2).tolist() == [[1, 2], [0, 2]]


def test_inputs_of_an_expert_are_its_rows_and_its_own_activations(source: Path) -> None:
    checkpoint = open_checkpoint(source)
    forward = begun(source, [QWEN3_MOE.prompt[:50], QWEN3_MOE.prompt[50:90]])
    weights = dict(QWEN3_MOE.tensors())
    for vector in checkpoint.layout.vectors:
        forward.vectors[vector.name] = gather_vector(vector, checkpoint)
    seen: dict[str, Routed] = {}
    for spec in checkpoint.layout.tensors[:6]:
        inputs = forward.inputs(spec.name)
        if isinstance(inputs, Routed):
            seen[spec.name] = inputs
        quant = builtin_format("f32")
        out = aligned_bytes(spec.panels * quant.panel_bytes(spec.k))
        pack_tensor(spec, checkpoint, quant, out, 1)
        nbytes = quant.panel_bytes(spec.k)
        forward.put(PackedTensor(spec.name, "f32", spec.n, spec.k, spec.panels, nbytes, out, 0, quant))
        out[:] = 0  # its memory changes afterwards
    first, last = seen["layers.0.experts.gate_up_proj"], seen["layers.0.experts.down_proj"]
    name = "model.layers.0.mlp"
    for expert in range(9):
        gate, up = (weights[f"{name}.experts.{expert}.{part}_proj.weight"] for part in ("gate", "up"))
        for index, rows in enumerate(first.of(expert)):
            assert first.inputs[index].shape[1] == QWEN3_MOE.config["hidden_size"]
            logits = first.inputs[index] @ weights[f"{name}.gate.weight"].T
            best = np.sort(logits, axis=1)[:, -3]
            np.testing.assert_array_equal(rows, first.inputs[index][logits[:, expert] >= best])
            made = rows @ gate.T
            np.testing.assert_allclose(last.of(expert)[index], made / (1 + np.exp(-made)) * (rows @ up.T), 1e-4, 1e-4)
    assert first.counts.tolist() == last.counts.tolist() and first.counts.sum() == 3 * 90


def test_an_expert_with_few_rows_uses_the_moments_of_its_layer_or_none() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((FEW + 10, 32)).astype(np.float32)
    to = np.zeros((len(x), 1), np.int64)
    to[:10] = 1
    split = np.concatenate([x[10:], x[:10]])

    def of(inputs: Routed, expert: int) -> NDArray[np.float64] | None:
        told = Statistics(lambda model: None, 1)  # type: ignore[arg-type, return-value]
        told._forward = type("", (), {"inputs": lambda self, name: inputs})()
        seen = told.of("x", builtin_format("f32"))(expert)
        return None if seen is None else seen.statistic

    assert np.array_equal(of(Routed([x], [to], 2, False), 0), moments([x[10:]], builtin_format("f32"), 1))
    assert np.array_equal(of(Routed([x], [to], 2, False), 1), moments([x], builtin_format("f32"), 1))
    assert np.array_equal(of(Routed([split], [to], 2, True), 0), moments([x[10:]], builtin_format("f32"), 1))
    assert of(Routed([split], [to], 2, True), 1) is None


class Counted:
    """A way through a model whose next tensor has experts; it counts how often it is asked for what they read."""

    def __init__(self) -> None:
        rows, to = np.ones((FEW, 32), np.float32), np.zeros((FEW, 1), np.int64)
        self.asked, self._routed = 0, Routed([rows], [to], 2, False)

    def inputs(self, tensor: str) -> Routed:
        self.asked += 1
        return self._routed

    def put(self, tensor: PackedTensor) -> None:
        pass


@pytest.mark.parametrize("is_fitted", [True, False])
def test_inputs_of_experts_are_gathered_once_for_new_and_for_resumed_tensors(source: Path, is_fitted: bool) -> None:
    counted, quant = Counted(), builtin_format("f32")
    told = Statistics(lambda model: counted, 1)  # type: ignore[arg-type, return-value]
    told.begin(open_checkpoint(source))
    if is_fitted:
        told.of("x", quant)
    told.put(PackedTensor("x", "f32", 16, 32, 1, 2048, np.zeros(2048, np.uint8), 0, quant))
    assert (counted.asked, told.few_rows) == (1, {"x": 1})


def convert(source: Path, made: Path, *options: str) -> dict[str, str]:
    assert main(["convert", str(source), str(made), *options]) == 0
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir()}


@pytest.mark.slow
def test_a_calibrated_mixture_has_equal_bytes_for_any_threads_and_reports_sparse_experts(
    source: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = ("--format", "int4-g64", "--calibrate", str(text))
    one = convert(source, tmp_path / "one", *fitted, "--set", "threads.count=1", "--json")
    few = json.loads(capsys.readouterr().out)["few_rows"]
    assert set(few) <= {f"layers.{layer}.experts.{part}" for layer in (0, 2) for part in ("gate_up_proj", "down_proj")}
    assert all(0 < count < 9 for count in few.values()) and few
    assert convert(source, tmp_path / "two", *fitted, "--set", "threads.count=2") == one
    said = capsys.readouterr()
    assert "the text hardly reaches" in said.out + said.err


@pytest.mark.slow
def test_a_calibrated_mixture_is_closer_to_the_original_than_a_rounded_one(
    source: Path, text: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "one", "--format", "int4-g64", "--calibrate", str(text))
    prompt = np.array([int(word[1:]) for word in text.read_text().split()[:60]], np.int32)

    def logits(model: Path, **settings: object) -> Floats:
        with harness.engine(model, {name.replace("__", "."): value for name, value in settings.items()}) as engine:
            return harness.logits(engine, prompt, range(60))

    exact = logits(source, **{"model.format": "f32", "model.formats": {}})
    errors = [
        np.abs(logits(tmp_path / "one") - exact).mean(),
        np.abs(logits(source, model__format="int4-g64") - exact).mean(),
    ]
    assert errors[0] < errors[1]


def test_profiles_do_not_quantize_routers() -> None:
    plan = layout(parse_config(QWEN2_MOE.config, "config.json"))
    for profile in PROFILES.values():
        found = allocate(plan, profile, profile.budget and 16.0, priors(plan, profile), builtin_format)
        routers = {name for name in found if name.endswith((".router", ".shared_gate"))}
        assert routers and {found[name] for name in routers} == {"bf16"} and not any(map(is_inner, routers))
        assert found["layers.0.experts.down_proj"] in profile.ladder


@pytest.mark.slow
def test_the_loss_of_experts_is_the_divergence_with_them_alone_quantized(source: Path) -> None:
    texts = [QWEN3_MOE.prompt[:60], QWEN3_MOE.prompt[60:120]]
    made = sensitivities(begun(source, texts), open_checkpoint(source), ("int4-p32",), builtin_format, 2)
    assert set(made) == {spec.name for spec in open_checkpoint(source).layout.tensors if is_inner(spec.name)}

    def of(patterns: dict[str, str]) -> list[Floats]:
        over = {"model.format": "bf16", "model.formats": patterns, "kv_cache.dtype": "f32"}
        with harness.engine(source, over) as engine:
            return [harness.logits(engine, text, range(60)) for text in texts]

    exact = of({})
    for name in ("layers.0.experts.gate_up_proj", "layers.2.experts.down_proj"):
        kl = sum(divergence(p, q) for p, q in zip(exact, of({name: "int4-p32"}), strict=True)) / 120
        assert made[name]["int4-p32"] == pytest.approx(kl, rel=0.006)  # three digits


@pytest.mark.slow
def test_a_profile_of_a_mixture_is_measured_and_cached(source: Path, text: Path, tmp_path: Path) -> None:
    options = ("--quality", "balanced", "--calibrate", str(text), "--budget", "9.5")
    one = convert(source, tmp_path / "one", *options, "--set", "threads.count=1")
    assert convert(source, tmp_path / "two", *options, "--set", "threads.count=2") == one
