"""Bits go to whoever loses least by a byte more, within the budget; what a tensor loses is what it loses alone."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from infeng_calibrate.forward import Forward
from infeng_calibrate.sensitivity import divergence, portion, sensitivities, tokens_for
from infeng_calibrate.store import Store
from infeng_convert.api import parse_config
from infeng_convert.checkpoints import open_checkpoint
from infeng_convert.cli.convert import QUALITIES
from infeng_convert.profiles import PROFILES, Profile, allocate, bits, is_inner, priors, weights_of

from infeng_core import Engine, _native
from infeng_core.batch import Batch
from infeng_core.errors import ResourceError, UsageError
from infeng_core.formats.quant import builtin_format
from infeng_core.kernels.choice import Selector
from infeng_core.models.weights import Layout, layout
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

LADDER = Profile("ladder", ("int4-p32", "int5-p32", "int6-p32"), 5.25)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("source"), tiny_model.Shape(tie=False))


@pytest.fixture(scope="module")
def plan(source: Path) -> Layout:
    return layout(parse_config(json.loads((source / "config.json").read_text()), source))


def losses(plan: Layout, weight: Mapping[str, float]) -> dict[str, dict[str, float]]:
    costs = {"int4-p32": 1.0, "int5-p32": 0.25, "int6-p32": 0.0625}
    return {
        spec.name: {f: c * weight.get(spec.name, 1) * weights_of(spec) for f, c in costs.items()}
        for spec in plan.tensors
    }


def test_a_profile_of_one_format_uses_it_for_every_tensor_of_a_layer(plan: Layout) -> None:
    for name in ("small", "int8"):
        found = allocate(plan, PROFILES[name], None, {}, builtin_format)
        assert {found[spec.name] for spec in plan.tensors if is_inner(spec.name)} == set(PROFILES[name].ladder)
        assert found["embed"] == found["lm_head"] == "int8-row"


@pytest.mark.parametrize("budget", [5.3, 5.6, 6.0, 6.4, 7.5])
def test_the_budget_is_kept_and_a_larger_one_loses_less(plan: Layout, budget: float) -> None:
    cost = losses(plan, {"layers.1.o_proj": 50, "layers.0.down_proj": 3})
    found = allocate(plan, LADDER, budget, cost, builtin_format)
    assert bits(plan, found, builtin_format) <= budget
    more = allocate(plan, LADDER, budget + 0.4, cost, builtin_format)

    def lost(formats: Mapping[str, str]) -> float:
        return sum(cost[name][format] for name, format in formats.items() if is_inner(name))

    assert lost(more) < lost(found) or set(found.values()) == {"int6-p32", "int8-row"}


def test_the_most_sensitive_tensor_gets_more_bits_first_and_all_if_worth_it(plan: Layout) -> None:
    floor = bits(plan, allocate(plan, PROFILES["small"], None, {}, builtin_format), builtin_format)
    found = allocate(plan, LADDER, floor + 0.25, losses(plan, {"layers.1.o_proj": 1000}), builtin_format)
    assert found["layers.1.o_proj"] == "int6-p32"
    assert sum(format == "int6-p32" for format in found.values()) == 1


def test_a_step_skips_a_format_if_that_gains_more_per_byte(plan: Layout) -> None:
    cost = {spec.name: dict.fromkeys(LADDER.ladder, 0.0) for spec in plan.tensors}
    cost["layers.0.o_proj"] = {"int4-p32": 1.0, "int5-p32": 0.99, "int6-p32": 0.0}
    found = allocate(plan, LADDER, 9, cost, builtin_format)
    assert {name: format for name, format in found.items() if is_inner(name) and format != "int4-p32"} == {
        "layers.0.o_proj": "int6-p32"
    }


def test_a_budget_below_the_smallest_format_is_refused_with_one_that_suffices(plan: Layout) -> None:
    for low, high in (
        ("int4-p32", "int5-p32"),
        ("int5-p32", "int6-p32"),
        ("int6-p32", "int8-row"),
        ("int8-row", "f32"),
    ):
        profile = Profile("ladder", (low, high), 5.5)
        floor = bits(plan, allocate(plan, replace(profile, ladder=(low,)), None, {}, builtin_format), builtin_format)
        for asked in (4, floor - 1e-9):
            with pytest.raises(UsageError, match="is less than the smallest format of ladder takes") as caught:
                allocate(plan, profile, asked, priors(plan, profile), builtin_format)
            least = re.match(rf"give at least ([0-9.]+), which is {low} throughout", caught.value.remedy)
            assert least and floor <= float(least[1]) <= floor + 0.01
            allocate(plan, profile, float(least[1]), priors(plan, profile), builtin_format)


def test_without_text_first_and_last_layers_down_and_v_lose_most(plan: Layout) -> None:
    made = priors(plan, LADDER)
    weight = {spec.name: made[spec.name]["int4-p32"] / weights_of(spec) for spec in plan.tensors if is_inner(spec.name)}
    assert weight["layers.0.down_proj"] == weight["layers.0.qkv_proj"] > weight["layers.0.o_proj"]
    assert weight["layers.0.o_proj"] > weight["layers.0.gate_up_proj"]
    assert all(one["int4-p32"] > one["int5-p32"] > one["int6-p32"] for one in made.values())


def logits(engine: Engine, ids: np.ndarray) -> np.ndarray:
    """Those of every token, one step, so that the calibrated way through the layers has the same rows."""
    rows = np.arange(len(ids), dtype=np.int32)
    table = np.arange(-(-len(ids) // 16), dtype=np.int32)
    segments = np.array([[0, len(ids), 0, 0]], np.int32)
    return engine.executable.run(Batch([], ids.copy(), rows, segments, table, rows)).copy()


@pytest.mark.slow
def test_sensitivity_is_the_divergence_with_that_tensor_alone_quantized(source: Path) -> None:
    config = load_config(overrides={"threads.count": 2})
    plugins = Plugins.discover(config)
    checkpoint = open_checkpoint(source)
    texts = [np.random.default_rng(seed).integers(2, 300, 60).astype(np.int32) for seed in range(2)]
    formats = ("int4-p32", "int8-row")
    forward = Forward(checkpoint.config, texts, config, Selector(plugins, config, plugins.cpu))
    made = sensitivities(forward, checkpoint, formats, builtin_format, 2)
    assert set(made) == {spec.name for spec in checkpoint.layout.tensors if is_inner(spec.name)}
    assert all(one["int4-p32"] > 5 * one["int8-row"] > 0 for one in made.values())
    settings = {
        "kv_cache.dtype": "f32",
        "kv_cache.memory": "16MB",
        "scheduler.max_batch_tokens": 64,
        "scheduler.max_running": 64,
    }

    def of(patterns: dict[str, str]) -> list[np.ndarray]:
        over = {"model.format": "bf16", "model.formats": patterns, **settings}
        with Engine(source, threads=1, overrides=over) as engine:
            return [logits(engine, text) for text in texts]

    exact = of({})
    kl = sum(divergence(p, q) for p, q in zip(exact, of({"layers.0.qkv_proj": "int4-p32"}), strict=True)) / 120
    assert made["layers.0.qkv_proj"]["int4-p32"] == pytest.approx(kl, rel=0.006)  # three digits


def test_divergence_follows_the_definition() -> None:
    rng = np.random.default_rng(0)
    p, q = (3 * rng.standard_normal((70, 50)).astype(np.float32) for _ in range(2))
    a, b = (np.exp(x.astype(float)) / np.exp(x.astype(float)).sum(1, keepdims=True) for x in (p, q))
    assert divergence(p, q) == pytest.approx((a * np.log(a / b)).sum(), rel=1e-9)
    assert divergence(p, p) == 0


def test_the_number_of_tokens_read_depends_on_sizes_alone(plan: Layout) -> None:
    texts = [np.arange(600, dtype=np.int32), np.arange(50, dtype=np.int32)]
    assert [len(one) for one in portion(texts, 630)] == [256, 256, 88, 30]
    assert [len(one) for one in portion(texts, 100)] == [100]
    assert sum(map(len, portion(texts, 10_000))) == 650
    assert tokens_for(plan, 3) == 4096


def test_hidden_states_beyond_memory_lie_on_disk_and_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    rows = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    store = Store(most=2 * rows.nbytes)
    kept = [store.keep(rows) for _ in range(3)]
    assert [isinstance(one, np.memmap) for one in kept] == [False, False, True]
    assert all(np.array_equal(one, rows) for one in kept) and not list(tmp_path.iterdir())
    del kept[0]
    assert not isinstance(store.keep(rows), np.memmap)


def test_memory_of_hidden_states_is_reused_after_its_last_view() -> None:
    rows = np.arange(64, dtype=np.float32).reshape(4, 16)
    store = Store(most=2 * rows.nbytes)
    view, gone = store.keep(rows)[:, 1:3], store.keep(rows + 1)
    del gone
    others = [store.keep(rows[:2] + 2), store.keep(rows[2:] + 2), store.keep(rows[:1])]  # the view keeps its memory
    assert [isinstance(one, np.memmap) for one in others] == [False, False, True]
    assert np.array_equal(view, rows[:, 1:3])
    del view, others
    whole = np.concatenate([rows, rows])
    assert not isinstance(store.keep(whole), np.memmap)  # what lies side by side is one again


def test_a_disk_without_room_for_hidden_states_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("infeng_calibrate.store.write_all", full)
    with pytest.raises(ResourceError, match=r"cannot be written \(No space left on device\)"):
        Store(most=0).keep(np.ones((2, 2), np.float32))


def test_the_command_line_and_the_native_core_know_every_profile() -> None:
    assert tuple(PROFILES) == QUALITIES
    assert {format for profile in PROFILES.values() for format in profile.ladder} <= set(_native.WEIGHT_FORMATS)
