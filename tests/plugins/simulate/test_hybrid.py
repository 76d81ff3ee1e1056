"""`infeng bench hybrid`: a mixture of experts on a CPU and a GPU together."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import examples
from infeng_simulate import hybrid
from infeng_simulate.hybrid import POLICIES, Cache, Machine, draw, greedy, layer, simulate
from infeng_simulate.mixture import Mixture

from infeng_core.cli import main

MACHINE = Machine(pcie=1e9, dram=2e9, hbm=10e9, cpu_macs=1e9, gpu_macs=10e9)
PAIR = Mixture(
    layers=1, experts=2, chosen=1, hidden=0, expert_bytes=1e6, expert_macs=1e6, other_bytes=2e6, other_macs=1e6
)
MIXTURE = Mixture(
    layers=4, experts=16, chosen=3, hidden=64, expert_bytes=2e6, expert_macs=4e6, other_bytes=8e6, other_macs=16e6
)
REAL = Machine(pcie=25e9, dram=90e9, hbm=1000e9, cpu_macs=3e12, gpu_macs=100e12)
NONE, BOTH = np.zeros(2, bool), np.ones(2, bool)
HANDOFF = 2 * hybrid.LATENCY


def bench(out: Path, config: Path, *more: str) -> dict[str, Any]:
    sizes = ("--rows", "1,8", "--steps", "4", "--gpu-experts", "2")
    assert main(["bench", "hybrid", str(config), *sizes, "--json", str(out), *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def test_two_experts_take_the_time_that_is_computed_by_hand() -> None:
    found = layer(np.array([3, 1]), NONE, PAIR, MACHINE)
    assert found.order.tolist() == [0, 1]
    assert found.cpu == pytest.approx([4e-3, 1e-3, 0])  # 3 and 1 ms of arithmetic, above 0.5 ms of memory
    assert found.gpu_busy == pytest.approx([0, 0.3e-3, 0.4e-3])
    assert found.gpu == pytest.approx([0, 1.3e-3, 2.1e-3])  # 1 ms of the link before each
    assert found.seconds == pytest.approx([4e-3 + HANDOFF, 1.3e-3, 2.1e-3])
    assert found.moved.tolist() == [0, 1e6, 2e6]
    assert greedy(found) == 1


def test_residents_come_first_and_wait_for_nothing() -> None:
    found = layer(np.array([1, 3]), np.array([True, False]), PAIR, MACHINE)
    assert (found.order.tolist(), found.held) == ([0, 1], 1)
    assert found.gpu == pytest.approx([0, 0.1e-3, 1.3e-3])  # the second one's weights move meanwhile
    assert found.seconds == pytest.approx([4e-3 + HANDOFF, 3e-3 + HANDOFF, 1.3e-3])
    both = layer(np.array([1, 3]), BOTH, PAIR, MACHINE)
    assert both.seconds[2] == pytest.approx(0.4e-3)
    assert both.read[2] == both.moved[2] == 0


def test_rows_that_cross_the_link_are_part_of_a_handoff() -> None:
    found = layer(np.array([3, 1]), NONE, replace(PAIR, hidden=250), MACHINE)
    assert found.handoff == pytest.approx(HANDOFF + 2 * 4 * 250 * 4 / 1e9)


def test_an_expert_without_rows_takes_no_time() -> None:
    found = layer(np.array([0, 2]), NONE, PAIR, MACHINE)
    assert found.order.tolist() == [1]
    assert found.seconds == pytest.approx([2e-3 + HANDOFF, 1.2e-3])


def test_where_memory_is_the_limit_no_cut_beats_the_cpu_by_more_than_the_handoff() -> None:
    """DRAM gives an expert's bytes once, to the CPU or to the link."""
    found = layer(np.ones(16, np.int64), np.zeros(16, bool), MIXTURE, REAL)
    assert found.seconds.min() >= found.seconds[0] - found.handoff


@pytest.mark.parametrize("seed", range(examples(80)))
def test_the_best_cut_is_never_slower_than_any_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loads, resident = rng.integers(0, 1 << rng.integers(1, 9), 16), rng.random(16) < rng.random()
    machine = Machine(*(10 ** rng.uniform(-1, 1) * value for value in (25e9, 90e9, 1000e9, 3e12, 100e12)))
    found = layer(loads, resident, MIXTURE, machine)
    best = found.seconds.min()
    for cut in (0, found.held, greedy(found), len(found.order)):
        assert best <= found.seconds[cut]


@pytest.mark.parametrize("seed", range(examples(80)))
def test_the_rule_of_each_expert_is_one_of_the_cuts(seed: int) -> None:
    """An expert goes to the GPU where min(cpu(rows), bytes / PCIe + gpu(rows)) is the second; more rows gain more."""
    rng = np.random.default_rng(seed)
    loads = rng.integers(0, 1 << rng.integers(1, 11), 16)
    found = layer(loads, np.zeros(16, bool), MIXTURE, REAL)
    goes = [(each := layer(np.eye(16, dtype=int)[one] * loads, np.zeros(16, bool), MIXTURE, REAL)).gpu[1] < each.cpu[0]
            for one in found.order]  # fmt: skip
    assert goes == sorted(goes, reverse=True)
    assert found.seconds.min() <= found.seconds[sum(goes)]


@pytest.mark.parametrize("slots", [0, 5])
@pytest.mark.parametrize("rows", [1, 40])
def test_split_is_never_slower_than_the_cpu_or_the_gpu_alone_would_be(rows: int, slots: int) -> None:
    for seed in range(3):
        drawn = draw(MIXTURE, rows, 6, 0.8, 0.4, seed)
        split, cpu, gpu = (simulate(name, *drawn, MIXTURE, REAL, slots)["step_ms"] for name in ("split", "cpu", "gpu"))
        assert split <= min(cpu, gpu) * (1 + 1e-9)


@pytest.mark.parametrize("faster", ["pcie", "dram", "hbm", "cpu_macs", "gpu_macs"])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "hybrimoe"])
def test_a_faster_part_never_makes_a_step_slower(faster: str, policy: str) -> None:
    drawn, last = draw(MIXTURE, 24, 3, 0.8, 0.4, seed=1), np.inf
    for factor in (0.25, 0.5, 1, 2, 4, 8):
        machine = replace(REAL, **{faster: factor * getattr(REAL, faster)})
        step = simulate(policy, *drawn, MIXTURE, machine)["step_ms"]
        assert step <= last * (1 + 1e-9)
        last = step


def test_without_a_gpu_a_step_reads_everything_from_dram() -> None:
    loads = np.array([[[1, 0]]])
    found = simulate("alone", loads, np.ones((1, 2)), PAIR, MACHINE)
    assert found["step_ms"] == pytest.approx(1.0 + 1.0)  # 2 MB of others at 2 GB/s, 1 M multiply-adds of an expert
    assert (found["cpu_share"], found["gpu_share"], found["moved_bytes"]) == (pytest.approx(1), 0, 0)


def test_all_on_the_gpu_moves_every_expert_that_has_rows() -> None:
    drawn = draw(MIXTURE, 2, 5, 0.8, 0.4, seed=0)
    found = simulate("gpu", *drawn, MIXTURE, REAL)
    assert found["moved_bytes"] == pytest.approx((drawn[0] > 0).sum() * 2e6 / 5)
    assert found["cpu_share"] == 0


def test_draws_follow_the_seed_and_every_row_chooses_different_experts() -> None:
    loads, popularity = draw(MIXTURE, 9, 5, 0.8, 0.4, seed=3)
    assert (loads.sum(axis=2) == 9 * 3).all()
    assert loads.max() <= 9
    again, other = (draw(MIXTURE, 9, 5, 0.8, 0.4, seed=seed)[0] for seed in (3, 4))
    assert (again == loads).all() and (other != loads).any()
    assert (np.sort(popularity, axis=1) == np.sort(popularity[:1], axis=1)).all()
    assert (popularity[0] != popularity[1]).any()


def test_popular_experts_are_chosen_more_often() -> None:
    loads, popularity = draw(MIXTURE, 200, 20, 1.2, 0.4, seed=0)
    best = np.take_along_axis(loads.sum(axis=0), np.argsort(-popularity, axis=1), axis=1).sum(axis=0)
    assert best[0] > best[3] > best[8] > best[15]
    flat = draw(MIXTURE, 200, 20, 0.0, 0.4, seed=0)[0].sum(axis=(0, 1))
    assert flat == pytest.approx(np.full(16, flat.mean()), rel=0.1)


def test_rows_repeat_the_given_share_of_their_choices() -> None:
    always = draw(MIXTURE, 1, 6, 0.8, 1.0, seed=0)[0]
    assert (always == always[0]).all()
    repeated = []
    for share in (0.0, 0.5):
        loads = draw(replace(MIXTURE, layers=64, experts=512), 1, 12, 0.0, share, seed=0)[0]
        repeated.append((loads[1:] & loads[:-1]).sum() / loads[1:].sum())
    assert repeated == pytest.approx([3 / 512, 0.5], abs=0.03)


def test_a_prediction_has_as_many_rows_and_is_right_in_most() -> None:
    loads, popularity = draw(MIXTURE, 1, 200, 0.8, 0.4, seed=0)
    found = hybrid.foreseen(loads, popularity, seed=0)
    assert (found.sum(axis=2) == loads.sum(axis=2)).all()
    assert 0.8 < np.minimum(found, loads).sum() / loads.sum() < 0.9


def test_an_expert_evicts_the_one_with_the_lowest_score() -> None:
    cache = Cache("split", np.array([[0.1, 0.4, 0.2, 0.3]]), 2)
    assert cache.resident.tolist() == [[False, True, False, True]]
    assert not cache.admit(0, 2, 0.0)
    cache.scores[0, 2] = 0.35
    assert not cache.admit(0, 2, 0.1)
    assert cache.admit(0, 2, 0.0)
    assert cache.resident.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize("policy", ["split", "hybrimoe"])
def test_a_cache_keeps_its_size_and_finds_more_than_its_share(policy: str) -> None:
    drawn = draw(MIXTURE, 4, 30, 1.0, 0.4, seed=2)
    found = simulate(policy, *drawn, MIXTURE, REAL, slots=4)
    assert 4 / 16 < found["hit_share"] < 1
    assert simulate(policy, *drawn, MIXTURE, REAL, slots=16)["hit_share"] == 1
    assert simulate(policy, *drawn, MIXTURE, REAL, slots=0)["hit_share"] == 0


def test_a_cache_by_score_learns_what_is_popular() -> None:
    loads, popularity = draw(MIXTURE, 8, 300, 1.0, 0.0, seed=5)
    wrong = popularity[:, ::-1] * 0.01  # as if the profile of another text had filled it
    fixed, learnt = (simulate(name, loads, wrong, MIXTURE, REAL, slots=4)["hit_share"] for name in ("pinned", "split"))
    assert learnt > fixed + 0.1


def test_the_result_has_a_measurement_for_each_number_of_rows_and_policy(
    tmp_path: Path, moe_config: Path, schema: Any
) -> None:
    result = bench(tmp_path / "a.json", moe_config)
    schema(result)
    assert [(one["rows"], one["policy"]) for one in result["measurements"]] == [
        (r, p) for r in (1, 8) for p in POLICIES
    ]
    assert result["mixture"]["experts"] == 8
    again = bench(tmp_path / "b.json", moe_config)
    assert again["measurements"] == result["measurements"]
    other = bench(tmp_path / "c.json", moe_config, "--seed", "1", "--policy", "split")
    assert {one["policy"] for one in other["measurements"]} == {"split"}


def test_sizes_are_those_of_packed_weights(tmp_path: Path) -> None:
    few = ("--format", "int8-row", "--policy", "cpu", "--steps", "1")
    mixture = bench(tmp_path / "out.json", Path("qwen3-30b-a3b"), *few)["mixture"]
    assert (mixture["layers"], mixture["experts"], mixture["chosen"], mixture["hidden"]) == (48, 128, 8, 2048)
    assert mixture["expert_macs"] == 3 * 2048 * 768
    assert mixture["expert_macs"] < mixture["expert_bytes"] < 1.01 * mixture["expert_macs"]
    own = 48 * (2048 * (32 + 2 * 4) * 128 + 32 * 128 * 2048 + 128 * 2048) + 151936 * 2048
    assert mixture["other_macs"] == own


def test_a_model_without_experts_is_refused_with_a_remedy(
    tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "hybrid", str(tiny_config)]) == 2
    said = capsys.readouterr().err
    assert "has no experts" in said and "gpt-oss-20b" in said


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--policy", "cpu,magic", "is not of alone, cpu"), ("--pcie", "0", "GB/s above 0"), ("--repeat", "1.5", "0 to 1"),
     ("--skew", "-1", "0 to 8"), ("--cpu-macs", "much", "TMAC/s above 0")],
)  # fmt: skip
def test_a_wrong_value_is_a_usage_error(
    option: str, value: str, words: str, moe_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "hybrid", str(moe_config), option, value])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
