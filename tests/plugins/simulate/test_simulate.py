"""`infeng bench simulate`: the scheduler on a virtual clock."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from infeng_bench.costs import step_costs
from infeng_bench.costs.machine import Machine
from infeng_bench.costs.step_costs import Step, StepCosts, fit
from infeng_bench.load.kinds import Load
from infeng_bench.load.traffic import draw
from infeng_simulate import simulator
from infeng_simulate.simulator import PreemptedError, Simulation, simulate
from infeng_simulate.verbs import simulate as simulate_verb
from infeng_simulate.virtual_adapters import VirtualRegistry

from infeng_core.api import Plugins, UsageError, load_config
from infeng_core.api.engines import Limits, Schedulers
from infeng_core.cli import main
from infeng_core.plug.hookspecs import POLICIES

COSTS = StepCosts({1: 0.010, 32: 0.041}, single=0.0, attended=0.0, sampled=0.0, adapter_load=0.5)
LIMITS = Limits(max_rows=32, max_samples=8, max_segments=8, context=256, kv_blocks=64)


def schedulers(limits: Limits = LIMITS, **settings: object) -> Schedulers:
    config = load_config(overrides={"scheduler.step_ms": 0, **{f"scheduler.{k}": v for k, v in settings.items()}})
    return Schedulers(config, limits, Plugins.discover().get(POLICIES, "fcfs"), "simulated", None)


def simulated(
    text: str, count: int, clients: float = math.inf, settings: dict[str, object] | None = None, **more: Any
) -> Simulation:
    machine = Machine(LIMITS, COSTS, **more)
    traffic = draw(Load.parse(text), count, 0, LIMITS.context, machine.capacity)
    return simulate(traffic, schedulers(**(settings or {})), machine, clients=clients)


def bench(out: Path, config: Path, *more: str) -> dict[str, Any]:
    arguments = ["bench", "simulate", "--synthetic", str(config), "-t", "1", "--costs", "default", "--json", str(out)]
    assert main([*arguments, *more]) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def test_one_request_takes_the_steps_of_its_prefill_and_its_decode() -> None:
    served = simulated("poisson:rate=inf,prompt=40,output=3", 1).outcomes
    assert served.begun.tolist() == [0]
    assert served.first.tolist() == pytest.approx([0.041 + 0.017])  # 32 rows, then 8
    assert served.last.tolist() == pytest.approx([0.041 + 0.017 + 2 * 0.010])
    assert served.tokens.tolist() == [3]
    assert len(served.gaps) == 2
    assert served.gaps.quantile(0.5) == pytest.approx(0.010, rel=0.003)


def test_requests_that_decode_together_share_their_steps() -> None:
    served = simulated("poisson:rate=inf,prompt=4,output=3", 2).outcomes
    assert served.first.tolist() == pytest.approx([0.017] * 2)
    assert served.last.tolist() == pytest.approx([0.017 + 2 * 0.011] * 2)


@pytest.mark.parametrize("share", [0.5, 2])
@pytest.mark.parametrize("kind", ["tenants:greedy=5,others=2", "zipf:adapters=4"])
def test_skipping_equal_steps_changes_no_result(kind: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    load = f"{kind},prompt=1:40,output=1:60,load={share}"
    fast = simulated(load, 200)
    monkeypatch.setattr(simulator, "_more_steps", lambda *_: [])
    slow = simulated(load, 200)
    for name in ("begun", "first", "last", "tokens"):
        assert getattr(fast.outcomes, name) == pytest.approx(getattr(slow.outcomes, name))
    assert fast.outcomes.gaps.figures() == pytest.approx(slow.outcomes.gaps.figures())
    skipped, asked = fast.activity.figures(1.0), slow.activity.figures(1.0)
    assert skipped.pop("kv_occupancy") == pytest.approx(asked.pop("kv_occupancy"), rel=0.02)
    assert skipped == pytest.approx(asked)


def test_joining_prompt_chunks_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    load, settings = "tenants:greedy=5,others=2,prompt=30:150,output=20:90", {"step_ms": 22}
    fast = simulated(load, 150, settings=settings)
    monkeypatch.setattr(simulator, "_more_steps", lambda *_: [])
    slow = simulated(load, 150, settings=settings)
    assert fast.outcomes.first == pytest.approx(slow.outcomes.first)
    assert fast.outcomes.last == pytest.approx(slow.outcomes.last)
    assert fast.outcomes.gaps.figures() == pytest.approx(slow.outcomes.gaps.figures())


def test_every_request_gets_the_tokens_that_it_asks_for() -> None:
    found = simulated("tenants:greedy=5,others=2,prompt=8:40,output=1:20", 300)
    served = found.outcomes
    assert served.is_done.all()
    assert (served.tokens == served.traffic.new).all()
    assert (served.arrived <= served.begun).all()
    assert (served.begun < served.first).all()
    assert (served.first <= served.last).all()
    assert len(served.gaps) == int((served.tokens - 1).sum())
    figures = found.activity.figures(10.0)
    assert 0 < figures["occupancy"] <= 1
    assert 0 < figures["kv_occupancy"] <= 1


def test_a_closed_loop_has_at_most_one_request_in_flight_per_client() -> None:
    served = simulated("poisson:rate=inf,prompt=8,output=4", 20, clients=2).outcomes
    assert served.is_done.all()
    for moment in served.arrived:
        assert ((served.arrived <= moment) & (served.last > moment)).sum() <= 2
    assert (served.arrived[2:] > 0).all()


def test_a_request_larger_than_the_cache_is_refused_and_counted() -> None:
    machine = Machine(Limits(32, 8, 8, 256, 4), COSTS)
    traffic = draw(Load.parse("poisson:rate=inf,prompt=40:100,output=2"), 20, 0, 256)
    served = simulate(traffic, schedulers(machine.limits), machine).outcomes
    too_long = int((traffic.prompt + traffic.new > 64).sum())
    assert 0 < too_long < 20
    assert sum(served.refused.values()) == too_long
    assert served.is_done.sum() == 20 - too_long


def test_requests_beyond_the_queue_limits_are_refused_by_reason() -> None:
    served = simulated("poisson:rate=inf,prompt=8,output=2", 20, settings={"max_waiting": 5}).outcomes
    assert served.refused == {"requests": 15}
    assert served.is_done.sum() == 5


def test_shared_prefixes_hit_the_prefix_cache() -> None:
    served = simulated("poisson:prompt=40,output=2,prefix=32", 10, clients=1).outcomes
    assert served.cached.tolist() == [0] + [32] * 9


def test_activated_adapters_share_what_comes_before_their_invocation() -> None:
    load = "zipf:adapters=4,alpha=0,rate=inf,prompt=60,output=2,prefix=40"
    plain, activated = (simulated(load, 12, clients=1, invocation=tokens).outcomes for tokens in (0, 8))
    assert plain.cached.tolist() == [0] * 4 + [32] * 8, "each adapter reads the beginning itself"
    assert activated.cached.tolist() == [0] + [32] * 11
    assert activated.last[-1] < plain.last[-1]
    whole = simulated(load, 12, clients=1, invocation=1000).outcomes
    assert whole.cached.tolist() == plain.cached.tolist()


@pytest.mark.parametrize("invocation", [1, 13, 40])
def test_skipping_equal_steps_with_activated_adapters_changes_no_result(
    invocation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = "zipf:adapters=4,prompt=30:150,output=1:60,load=0.5"
    costs = StepCosts({1: 0.010, 32: 0.041}, single=0.0, attended=0.0, sampled=0.0, adapter_load=0.5, adapter=0.002)
    machine = Machine(LIMITS, costs, invocation=invocation)
    traffic = draw(Load.parse(load), 150, 0, LIMITS.context, machine.capacity)
    fast = simulate(traffic, schedulers(), machine).outcomes
    monkeypatch.setattr(simulator, "_more_steps", lambda *_: [])
    slow = simulate(traffic, schedulers(), machine).outcomes
    for name in ("begun", "first", "last", "tokens"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name))


def test_a_cache_too_small_for_the_running_requests_preempts() -> None:
    machine = Machine(Limits(32, 8, 8, 256, 8), COSTS)
    traffic = draw(Load.parse("poisson:rate=inf,prompt=8,output=60"), 8, 0, 256)
    found = simulate(traffic, schedulers(machine.limits), machine)
    assert found.outcomes.is_done.all()
    assert found.activity.figures(1.0)["preemptions"] > 0


def test_a_simulation_without_allowed_preemption_stops_at_the_first_one() -> None:
    machine = Machine(Limits(32, 8, 8, 256, 8), COSTS)
    traffic = draw(Load.parse("poisson:rate=inf,prompt=8,output=60"), 8, 0, 256)
    with pytest.raises(PreemptedError):
        simulate(traffic, schedulers(machine.limits), machine, may_preempt=False)


@pytest.mark.parametrize("memory", ["auto", "60kB"])
def test_without_shared_prefixes_the_prefix_cache_changes_no_result(
    memory: str, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures() -> dict[str, Any]:
        options = ("--load", "tenants:prompt=8:60,output=4:60,load=2", "--requests", "60", "--policies", "fcfs")
        found = bench(tmp_path / "out.json", tiny_config, *options, "--set", f"kv_cache.memory={memory}")["policies"]
        return {name: value for name, value in found["fcfs"].items() if name != "seconds"}

    short = figures()
    assert (short["preemptions"] > 0) == (memory != "auto")
    monkeypatch.setattr(simulate_verb, "WITHOUT_PREFIXES", {})
    assert figures() == short


def test_steps_stay_within_the_time_limit_of_the_settings() -> None:
    load = "poisson:rate=2,prompt=64,output=30"
    bounded = simulated(load, 100, settings={"step_ms": 30}).outcomes
    assert bounded.is_done.all()
    assert bounded.gaps.quantile(0.99) < simulated(load, 100).outcomes.gaps.quantile(0.99)


def test_adapters_take_time_to_load_and_are_evicted_for_others() -> None:
    found = simulated("zipf:alpha=0,adapters=3,rate=inf,prompt=4,output=2", 6, max_adapters=1)
    assert found.outcomes.is_done.all()
    assert found.loads >= 3
    assert found.outcomes.first.min() > 0.5
    roomy = simulated("zipf:alpha=0,adapters=3,rate=inf,prompt=4,output=2", 6, max_adapters=3)
    assert roomy.loads == 3
    assert np.nanmax(roomy.outcomes.last) < np.nanmax(found.outcomes.last)


def test_an_adapter_in_use_keeps_its_place() -> None:
    registry = VirtualRegistry(1, 2.0)
    first, second = registry.reference("a"), registry.reference("b")
    assert registry.prefetch([first, second]) == 1
    assert not first.acquire()
    assert registry.next_change == 2.0
    registry.advance(2.0)
    assert first.acquire()
    assert registry.prefetch([second]) == 0
    first.close()
    assert registry.prefetch([second]) == 1
    assert not first.is_ready()


def test_the_same_seed_gives_the_same_simulation(tiny_config: Path, tmp_path: Path) -> None:
    def figures(seed: int) -> dict[str, Any]:
        options = ("--load", "bursts:size=8,prompt=16,output=4", "--requests", "100", "--seed", str(seed))
        found: dict[str, Any] = bench(tmp_path / "out.json", tiny_config, *options)["policies"]["fcfs"]
        return {name: value for name, value in found.items() if name != "seconds"}

    assert figures(1) == figures(1) != figures(2)


def test_policies_are_compared_on_the_same_requests(
    tiny_config: Path, tmp_path: Path, schema: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    options = ("--load", "tenants:greedy=20,others=2,prompt=16:64,output=4:16", "--requests", "200")
    options += ("--policies", "fcfs,bench-turns", "--html", str(page))
    result = bench(tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert list(result["policies"]) == ["fcfs", "bench-turns"]
    for one in result["policies"].values():
        assert one["completed"] == 200
        assert one["victim_p99_ttft_ratio"] >= 1
        assert 0 < one["jain"] <= 1
        assert set(one["per_tenant"]) == {"greedy", "other0", "other1"}
        assert one["p50_ttft_ms"] == one["median_ttft_ms"] <= one["p99_ttft_ms"]
    assert result["costs"]["source"].startswith("default: TinyLlama")
    shown = capsys.readouterr().out
    assert "costs: default" in shown
    assert "bench-turns" in shown
    assert page.read_text().startswith("<!doctype html>")
    assert "Requests that run and wait" in page.read_text()


def test_policies_in_parallel_give_the_results_of_policies_in_sequence(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures() -> list[dict[str, Any]]:
        options = ("--load", "poisson:prompt=8,output=4", "--requests", "30", "--policies", "fcfs,bench-turns")
        found = bench(tmp_path / "out.json", tiny_config, *options)["policies"]
        return [{name: value for name, value in one.items() if name != "seconds"} for one in found.values()]

    alone = figures()
    monkeypatch.setattr(simulate_verb, "PARALLEL", 1)
    assert figures() == alone


def test_loads_without_a_greedy_tenant_have_no_victims(tiny_config: Path, tmp_path: Path, schema: Any) -> None:
    result = bench(
        tmp_path / "out.json", tiny_config, "--load", "zipf:adapters=4,prompt=8,output=4", "--requests", "60"
    )
    schema(result)
    assert result["policies"]["fcfs"]["victim_p99_ttft_ratio"] is None
    assert result["policies"]["fcfs"]["adapter_loads"] >= 1
    assert set(result["policies"]["fcfs"]["per_adapter"]) <= {"a0", "a1", "a2", "a3"}


def test_costs_come_from_a_file(tiny_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    COSTS.write(file)
    options = ("--load", "poisson:rate=inf,prompt=8,output=1", "--requests", "1", "--costs", str(file))
    result = bench(tmp_path / "out.json", tiny_config, *options)
    assert result["policies"]["fcfs"]["mean_ttft_ms"] == pytest.approx(17)
    file.write_text("{}")
    arguments = ["bench", "simulate", "--synthetic", str(tiny_config), "--costs", str(file)]
    assert main(arguments) == 2


@pytest.mark.slow
def test_measured_costs_are_cached(tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infeng_bench.costs import calibration

    options = ("--load", "poisson:prompt=8,output=2", "--requests", "20", "--costs", "measure")
    first = bench(tmp_path / "out.json", tiny_config, *options)["costs"]
    assert first["source"].startswith("measured on ")
    assert first["facts"]["threads"] == 1
    assert first["adapter_load"] > 0
    monkeypatch.setattr(calibration, "measure", None)
    assert bench(tmp_path / "out.json", tiny_config, *options)["costs"] == first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policies", "fcsf"], "fcfs"),
        (["--costs", "nowhere.json"], "give a file of step costs"),
        (["--load", "poisson:rte=1"], "did you mean `rate`?"),
    ],
)
def test_an_error_names_the_load_that_cannot_be_simulated_and_a_remedy(
    tiny_config: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str], said: str
) -> None:
    assert main(["bench", "simulate", "--synthetic", str(tiny_config), "--costs", "default", *options]) in (1, 2)
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ costs of steps ---


def test_a_fit_recovers_the_costs_behind_step_times() -> None:
    true = StepCosts({1: 0.02, 8: 0.05, 64: 0.4}, single=2e-6, attended=1e-6, sampled=5e-4, adapter=1e-3)
    steps = [Step(rows, rows * context, 0, rows, k) for rows in (1, 2, 8) for context in (8, 500) for k in (0, 2)]
    steps += [Step(rows, 0, rows * context, 1) for rows in (2, 8, 32, 64) for context in (30, 700)]
    found = fit([(step, true.seconds(step)) for step in steps], "here", {})
    for step in [*steps, Step(16, 100, 5000, 3)]:
        assert found.seconds(step) == pytest.approx(true.seconds(step), rel=0.02)
    assert found.facts["shapes"] == len(set(steps))
    assert found.facts["median_error"] < 1e-6


def test_a_fit_to_noisy_steps_keeps_their_total_time() -> None:
    rng = np.random.default_rng(0)
    true = StepCosts({1: 0.02, 64: 0.4}, single=2e-6, attended=0.0, sampled=0.0)
    steps = [Step(int(rows), int(rows) * 100, 0, 1) for rows in rng.integers(1, 65, 3000)]
    measured = [(step, true.seconds(step) * float(rng.lognormal(0.0, 0.4))) for step in steps]
    found = fit(measured, "here", {})
    assert sum(found.seconds(step) for step in steps) == pytest.approx(sum(time for _, time in measured), rel=0.03)


def test_an_outlier_step_hardly_changes_the_fit() -> None:
    step = Step(4, 32, 0, 4)
    readings = [0.1] * 8 + [0.12, 9.0]
    found = fit([(step, seconds) for seconds in readings], "here", {}).seconds(step)
    assert found == pytest.approx((0.1 * 8 + 0.12 + 0.3) / 10)
    with pytest.raises(UsageError, match="no step was measured"):
        fit([], "here", {})


def test_tabulated_costs_equal_the_formula_within_and_beyond_the_table() -> None:
    table = COSTS.table(64)
    assert [table[rows] for rows in (1, 16, 32, 64)] == pytest.approx(
        [COSTS.seconds(Step(rows, 0, 0, 0)) for rows in (1, 16, 32, 64)]
    )
    assert table[64] == pytest.approx(0.073)


def test_costs_survive_a_round_trip_through_a_file() -> None:
    shipped = step_costs.default()
    assert StepCosts.from_dict(json.loads(json.dumps(shipped.to_dict()))) == shipped
    assert shipped.facts["macs_per_token"] > 1e9
    assert shipped.scaled(2.0, "twice").seconds(Step(8, 9, 9, 8)) == pytest.approx(
        2 * shipped.seconds(Step(8, 9, 9, 8))
    )


def test_the_capacity_is_the_throughput_of_a_saturated_simulation() -> None:
    found = simulated("poisson:rate=inf,prompt=24,output=12", 400)
    reached = 400 / float(found.outcomes.last.max())
    assert Machine(LIMITS, COSTS).capacity(24, 12) == pytest.approx(reached, rel=0.15)
