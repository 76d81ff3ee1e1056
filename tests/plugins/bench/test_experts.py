"""`infeng bench experts`: what is measured, alone and beside kTransformers, and the other side's program."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from infeng_bench.kernels import experts
from infeng_bench.models import shapes
from infeng_bench.models.model_shape import ModelShape
from infeng_peers import oracles, serve
from infeng_peers.environment import Environment
from infeng_peers.known import peer
from numpy.typing import NDArray

from infeng_core.cli import main
from infeng_core.formats.quant import builtin_format
from infeng_core.models.weights import layout
from infeng_core.plug.assembly import load_config
from infeng_core.plug.manager import Plugins

FAKE = Path(__file__).parents[1] / "peers" / "fake_oracle.py"
PROGRAM = Path(oracles.__file__).with_name("oracle_kt_kernel.py")
SIZES = {"hidden": 200, "intermediate": 64, "experts": 6, "top_k": 2, "layers": 3, "rows": 40}
PLACE = Environment(peer("kt_kernel"))
MISSING, PYTHON = PLACE.missing(), PLACE.python  # of the user's cache: the tests have their own


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "MOST_PASSES", 2)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program that answers at once stand for kTransformers."""
    monkeypatch.setitem(oracles.SCRIPTS, "kt_kernel", str(FAKE))
    monkeypatch.setattr(oracles, "interpreter", lambda name, given: sys.executable)


@pytest.fixture
def theirs() -> Any:
    return serve.load_file(PROGRAM)


def measured(out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb on one thread and return its result."""
    command = ["bench", "experts", "--synthetic", str(config), "-t", "1", "--pairs", "2", "--roofline", "none"]
    assert main([*command, "--format", "int8-row", "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def made(config: Path, format: str) -> experts.Experts:
    """Return the experts of a model's layers."""
    sizes, loaded = shapes.model_config(config), load_config()
    shape = ModelShape("moe", sizes, {spec.name: format for spec in layout(sizes).tensors})
    return experts.Experts(shape, builtin_format, Plugins.discover(loaded), loaded, 9, 1)


def test_every_number_of_rows_is_measured_alone(moe_config: Path, tmp_path: Path, schema: Any) -> None:
    result = measured(tmp_path / "out.json", moe_config, "--rows", "1,5")
    schema(result)
    assert [line["rows"] for line in result["measurements"]] == [1, 5]
    for line in result["measurements"]:
        seconds = line["engines"]["infeng"]["seconds"]
        assert (line["layers"], line["passes"], line["seconds"]) == (2, 2, seconds)
        assert line["gmacs_per_s"] == pytest.approx(line["rows"] * 2 * 3 * 64 * 32 / seconds["median"] / 1e9)
        assert "ratios" not in line
    assert "ratios" not in result and {"route", "linear", "combine"} <= {one["op"] for one in result["kernels"]}


@pytest.mark.usefixtures("fake", "undisturbed")
def test_ratios_are_those_of_rates_by_number_of_rows(
    moe_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured(tmp_path / "out.json", moe_config, "--rows", "1,5", "--peer", "kt_kernel")
    schema(result)
    assert result["oracles"] == {"kt_kernel": "0, f32"}
    for line in result["measurements"]:
        peers_seconds = 0.5 / 2 / 2  # as it says, over passes and layers
        assert line["engines"]["kt_kernel"]["seconds"]["median"] == pytest.approx(peers_seconds)
        assert line["engines"]["kt_kernel"]["workers"] == 1
        ratios = [pair["infeng"] / pair["kt_kernel"] for pair in line["pairs"]]
        assert len(ratios) == 2
        assert result["ratios"]["kt_kernel"][str(line["rows"])] == pytest.approx(np.median(ratios))
        assert result["ratio_low"]["kt_kernel"][str(line["rows"])] == pytest.approx(min(ratios))
        assert line["pairs"][0]["kt_kernel"] == pytest.approx(line["rows"] / peers_seconds)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[-5:] == ["us", "workers", "ratio", "at", "least"]
    assert [line.split()[-2] for line in lines[:2]] == [f"{one:.2f}" for one in result["ratios"]["kt_kernel"].values()]


@pytest.mark.usefixtures("fake", "undisturbed")
def test_the_faster_number_of_workers_counts(moe_config: Path, tmp_path: Path) -> None:
    command = ("--rows", "2", "--peer", "kt_kernel", "-t", "2")
    [line] = measured(tmp_path / "out.json", moe_config, *command)["measurements"]
    assert line["engines"]["kt_kernel"]["seconds_by_workers"] == {"1": 0.125, "2": 0.0625}
    assert (line["engines"]["kt_kernel"]["workers"], line["engines"]["kt_kernel"]["seconds"]["max"]) == (2, 0.0625)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--peer", "kt_kernel"], 1, "run infeng bench peers install kt_kernel"),
        (["--peer", "kt_kernel", "--format", "f32"], 2, "nothing that stands against f32"),
        (["--peer", "torch"], 2, "choose from"),
    ],
)
def test_an_error_names_what_is_missing(
    moe_config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    command = ["bench", "experts", "--synthetic", str(moe_config), "--format", "int8-row", "-t", "1", *arguments]
    try:
        ended = main(command)
    except SystemExit as error:  # argparse ends that way
        ended = int(error.code or 0)
    assert ended == status
    assert said in capsys.readouterr().err


def test_a_model_without_experts_is_an_error(attempt: Any) -> None:
    status, said = attempt("experts")
    assert (status, "tiny.json: it has no experts" in said) == (2, True)


@pytest.mark.usefixtures("fake")
def test_only_its_own_verb_compares_with_it(attempt: Any) -> None:
    status, said = attempt("compare", "--work", "decode", "--engines", "infeng,kt_kernel")
    assert (status, "'kt_kernel': unknown" in said) == (2, True)


def test_the_program_computes_the_weighted_sum_of_chosen_experts(moe_config: Path) -> None:
    with_floats = made(moe_config, "f32")
    try:
        with_floats.run(9, 1, 0)
        x, out = with_floats.x[:9], with_floats.out[:9]
        layer = {spec.name.rpartition(".")[2]: spec for spec in layout(shapes.model_config(moe_config)).tensors
                 if spec.name.startswith("layers.0.experts.")}  # fmt: skip
        first, last = (
            experts.random_tensor(layer[name], "f32", builtin_format).dequantize()
            for name in ("gate_up_proj", "down_proj")
        )
        assert (first.reshape(8, 64, 64) == first[:64]).all(), "all experts are equal, and shares add up to 1"
        gate, up = (x @ first[:64].T).reshape(9, 2, 2, 16).transpose(2, 0, 1, 3).reshape(2, 9, 32)
        np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up @ last[:64].T, rtol=1e-4, atol=1e-6)
    finally:
        with_floats.close()


@pytest.mark.parametrize("format", ["int8-row", "int4-g64"])
def test_both_sides_choose_the_same_experts(moe_config: Path, theirs: Any, format: str) -> None:
    ours = made(moe_config, format)
    try:
        ours.run(9, 2, 7)
        chosen, shares, *_ = ours.program.view_routing(0)
        scores = np.random.default_rng(7).random((2, 9, 8), np.float32)
        ids, weights = theirs.chosen(scores, 2)
        np.testing.assert_array_equal(chosen[:9], ids[1])
        np.testing.assert_allclose(shares[:9], weights[1], rtol=1e-6)
        assert np.isfinite(ours.out[:9]).all() and ours.out[:9].any()
    finally:
        ours.close()


def test_work_counts_each_expert_that_rows_go_to_once(moe_config: Path) -> None:
    ours = made(moe_config, "int8-row")
    try:
        expert = 4 * sum(builtin_format("int8-row").panel_bytes(k) for k in (64, 32))
        assert ours.work(1) == (2 * 3 * 64 * 32, 2 * expert)
        assert ours.work(1000) == (1000 * 2 * 3 * 64 * 32, 8 * expert)
        assert ours.passes(1) == experts.MOST_PASSES
    finally:
        ours.close()


class Stub:
    """kt-kernel's interface: tasks run when they are submitted."""

    def __init__(self, bits: int = 0x3F80) -> None:
        self.configs: list[Any] = []
        self.calls: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        self.moe = SimpleNamespace(MOEConfig=self.config, AMXInt4_MOE=self.layer, AMXInt8_MOE=self.layer)
        self.backend_ = "workers"
        self.bits = bits

    def config(self, *sizes: int) -> Any:
        self.configs.append(SimpleNamespace(sizes=sizes))
        return self.configs[-1]

    def layer(self, config: Any) -> Any:
        _, top_k, hidden, _, _ = config.sizes

        def forward(rows: int, k: int, ids: int, shares: int, x: int, out: int, more: bool) -> Callable[[], None]:
            assert (k, more) == (top_k, False)

            def task() -> None:
                count = ctypes.c_int64.from_address(rows).value
                chosen = np.ctypeslib.as_array((ctypes.c_int64 * (count * k)).from_address(ids))
                weights = np.ctypeslib.as_array((ctypes.c_float * (count * k)).from_address(shares))
                self.calls.append((chosen.reshape(count, k).copy(), weights.reshape(count, k).copy()))
                result = (ctypes.c_uint16 * (count * hidden)).from_address(out)
                result[:] = [self.bits] * (count * hidden)

            return task

        return SimpleNamespace(load_weights_task=lambda order: lambda: None, forward_task=forward)

    def submit(self, task: Callable[[], None]) -> None:
        task()

    def sync(self) -> None:
        pass


def test_the_peer_sends_the_same_choices_through_every_layer(theirs: Any) -> None:
    stub = Stub()
    made = theirs.Experts(stub, stub, "int4", **SIZES)
    assert made.name == "AMXInt4_MOE 256x128", "sizes are multiples of 128 there"
    [config] = stub.configs
    assert (config.sizes, config.max_len) == ((6, 2, 256, 128, 0), 64)
    assert made.run(5, 2, 3) > 0
    ids, weights = theirs.chosen(np.random.default_rng(3).random((2, 5, 6), np.float32), 2)
    assert len(stub.calls) == 2 * SIZES["layers"]
    for number, (chosen, shares) in enumerate(stub.calls):
        np.testing.assert_array_equal(chosen, ids[number // SIZES["layers"]])
        np.testing.assert_array_equal(shares, weights[number // SIZES["layers"]])


@pytest.mark.parametrize("bits", [0, 0x7FC0])
def test_a_peer_that_computes_nothing_is_an_error(theirs: Any, bits: int) -> None:
    stub = Stub(bits)
    with pytest.raises(RuntimeError, match="AMXInt8_MOE 256x64 wrote no finite result for 3 rows"):
        theirs.Experts(stub, stub, "int8", **SIZES).run(3, 1, 0)


def test_its_compiled_part_is_loaded_without_the_package(
    theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="not installed"):
        theirs.extension()
    package = tmp_path / "kt_kernel"
    package.mkdir()
    (package / "__init__.py").write_text("import torch_that_is_missing")
    (package / "_cpu_detect.py").write_text("def initialize(): return 'compiled', 'avx512_bf16'")
    assert theirs.extension() == ("compiled", "avx512_bf16")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4-p32-arow-h256", "int8-row"])
def test_the_real_peer_answers(
    format: str, moe_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    if MISSING:
        pytest.skip(f"asks the peer kt_kernel, which is {MISSING}")
    monkeypatch.setattr(oracles, "interpreter", lambda name, given: str(PYTHON))
    wide = {**json.loads(moe_config.read_text()), "hidden_size": 256, "moe_intermediate_size": 128}
    (tmp_path / "wide.json").write_text(json.dumps(wide))
    more = ("--rows", "1,5,40", "--format", format, "--peer", "kt_kernel")
    result = measured(tmp_path / "out.json", tmp_path / "wide.json", *more)
    assert set(result["ratios"]["kt_kernel"]) == {"1", "5", "40"}
