"""`infeng bench lora-tax`: who is measured when, with which adapters, and what is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.engine.alternating import AlternatingGroups
from infeng_bench.engine.sides import Pair, Side
from infeng_bench.verbs import lora_tax

from infeng_core import Engine
from infeng_core.cli import main


def tax(out: Path, config: Path, *more: str) -> dict[str, Any]:
    """Run the verb on one thread and return its result."""
    small = ("--rank", "4", "--pairs", "3", "--context", "24", "--steps", "2", "--adapters", "2")
    command = ["bench", "lora-tax", "--synthetic", str(config), "-t", "1", *small, *more, "--json", str(out)]
    assert main(command) == 0
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Let every step with adapters take 1.25 s and every other one 1 s; return the adapters of each."""
    found: list[tuple[str, ...]] = []
    real = Side.step

    def step(self: Side) -> float:
        real(self)
        found.append(tuple(self.adapters))
        return 1.25 if self.adapters else 1.0

    monkeypatch.setattr(Side, "step", step)
    return found


def test_base_and_lora_decode_alternately_and_the_tax_is_the_median_of_pairs(
    tiny_config: Path, tmp_path: Path, schema: Any, steps: list[tuple[str, ...]]
) -> None:
    result = tax(tmp_path / "out.json", tiny_config, "--rows", "3")
    schema(result)
    assert result["lora_tax"] == pytest.approx(0.25)
    assert (result["lora_tax_low"], result["lora_tax_high"]) == pytest.approx((0.25, 0.25))
    assert result["lora_tax_confidence"] == 0.875
    assert result["tokens_per_s"]["without"]["median"] == pytest.approx(3)  # three rows, a second a step
    assert result["tokens_per_s"]["with"]["median"] == pytest.approx(3 / 1.25)
    assert [len(result[name]) for name in ("pairs", "starved")] == [3, 0]
    uses = [bool(adapters) for adapters in steps]
    without, with_ = [False] * 2, [True] * 2
    assert uses[-16:] == [*without, *with_, *with_, *without] * 2  # a pair that warms up, then three
    assert result["bytes_share"] == pytest.approx(result["adapter_bytes"] / result["bytes_per_token"])
    facts = ("phase", "rows", "context", "steps", "adapters", "rank", "targets", "dora", "storage", "base_only")
    assert [result[name] for name in facts] == ["decode", 3, 24, 2, 2, 4, "all", False, "int8", False]
    assert result["work"] == "decode:rows=3,context=24,steps=2"


def test_rows_are_spread_over_the_adapters_and_both_sides_get_the_same_prompts(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = Engine.submit

    def submit(self: Engine, request: Any, *rest: Any, **more: Any) -> Any:
        asked.append(request)
        return real(self, request, *rest, **more)

    monkeypatch.setattr(Engine, "submit", submit)
    tax(tmp_path / "out.json", tiny_config, "--rows", "5", "--phase", "prefill", "--pairs", "1")
    measured = [request for request in asked if hasattr(request, "prompt")]
    assert [request.adapter for request in measured] == [
        *[None] * 5,
        *(f"synthetic-{row % 2}" for row in range(5)),
    ] * 2
    prompts = [request.prompt for request in measured]
    assert prompts[:5] == prompts[5:10]
    assert prompts[10:15] == prompts[15:20] != prompts[:5]


def test_prompts_are_timed_step_by_step_until_each_has_its_first_token(
    tiny_config: Path, tmp_path: Path, schema: Any, steps: list[tuple[str, ...]]
) -> None:
    options = ("--phase", "prefill", "--rows", "2", "--set", "scheduler.max_batch_tokens=16")
    result = tax(tmp_path / "out.json", tiny_config, *options)
    schema(result)
    assert "steps" not in result
    assert result["lora_tax"] == pytest.approx(0.25)
    assert result["pairs"] == [{"without": 3.0, "with": 3.75}] * 3  # 48 rows, 16 a step
    assert [bool(adapters) for adapters in steps[:12]] == [False, True] * 3 + [True, False] * 3
    assert result["tokens_per_s"]["without"]["median"] == pytest.approx(48 / 3)


def test_base_only_compares_an_engine_that_holds_adapters_with_one_that_cannot(
    tiny_config: Path, tmp_path: Path, schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = Side.start

    def start(self: Side, prompts: Any, new: int) -> None:
        seen.append((self.engine, self.engine.config.adapters.max_resident, len(self.engine.adapters.infos())))
        real(self, prompts, new)

    monkeypatch.setattr(Side, "start", start)
    result = tax(tmp_path / "out.json", tiny_config, "--base-only")
    schema(result)
    assert result["base_only"] is True
    assert [(most, count) for _, most, count in seen] == [(0, 0), (2, 2)]
    assert seen[0][0] is not seen[1][0]
    assert result["adapter_bytes"] > 0


@pytest.mark.slow
def test_larger_sizes_need_more_bytes(tiny_config: Path, tmp_path: Path) -> None:
    def nbytes(*options: str) -> int:
        found = tax(tmp_path / "out.json", tiny_config, "--pairs", "1", "--rows", "1", "--steps", "1", *options)
        return int(found["adapter_bytes"])

    one = nbytes("--storage", "bf16", "--adapters", "1")
    assert nbytes("--storage", "bf16", "--adapters", "3") == 3 * one
    assert nbytes("--storage", "int8", "--adapters", "1") < one
    assert nbytes("--storage", "bf16", "--adapters", "1", "--targets", "qv") < one
    assert nbytes("--storage", "bf16", "--adapters", "1", "--dora") > one


def test_the_bounds_are_those_of_the_sign_test() -> None:
    found = [Pair((1.0, 1.0 + i / 100), (4, 4)) for i in range(1, 21)]
    figures = lora_tax.taxed(found)
    assert figures["lora_tax"] == pytest.approx(0.105)
    assert (figures["lora_tax_low"], figures["lora_tax_high"]) == pytest.approx((0.06, 0.15))
    assert figures["lora_tax_confidence"] >= 0.95


def test_a_pair_compares_times_per_token() -> None:
    assert Pair((1.0, 3.0), (10, 20)).ratio == pytest.approx(1.5)


def test_two_groups_share_an_engine_and_one_runs_at_a_time(tiny_config: Path, tmp_path: Path) -> None:
    """Without a turn, everything is served: warming up needs no steering."""
    from infeng_bench.models import synthetic

    from infeng_core import SamplingParams

    overrides = {"scheduler.use": "bench-turns"}
    with Engine(synthetic.native_directory(tiny_config, "int4-g64"), threads=1, overrides=overrides) as engine:
        scheduler, policy = engine.scheduler, engine.scheduler.policy
        assert isinstance(policy, AlternatingGroups)
        params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
        assert len(engine.generate([[5, 6], [7]], params)) == 2
        policy.turn = True
        stream = engine.submit([5, 6, 7], params)
        assert engine.step() is False  # it is the turn of requests with adapters, and there are none
        assert (scheduler.waiting, scheduler.running) == (1, 0)
        policy.turn = False
        assert engine.step() is True
        assert (scheduler.waiting, scheduler.running) == (0, 1)
        stream.cancel()
        assert (scheduler.waiting, scheduler.running) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--targets", "q_prj"], "did you mean `q_proj`"),
        (["--rank", "5000"], "from 1 to"),
        (["--rows", "40"], "scheduler.max_running=80"),
        (["--context", "250"], "ask for a shorter context"),
        (["--storage", "int4"], "invalid choice"),
        (["--phase", "idle"], "invalid choice"),
    ],
)
def test_an_error_names_the_invalid_option_and_a_remedy(attempt: Any, arguments: list[str], said: str) -> None:
    small = ("--rank", "4", "--pairs", "1", "--context", "24", "--steps", "2")
    status, told = attempt("lora-tax", *small, *arguments)
    assert (status, said in told) == (2, True)
