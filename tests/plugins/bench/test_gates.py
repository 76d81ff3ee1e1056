"""Limits on the figures of a measurement: `--gate` of every verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from infeng_bench.stats import gates
from infeng_bench.stats.gates import Gate
from report_parts import compared, swept

from infeng_core.api import UsageError
from infeng_core.cli import main


def outcomes(result: dict[str, Any], *texts: str) -> list[bool]:
    return [one["passed"] for one in gates.judged(result, gates.parse(texts))]


def test_gates_are_read_one_by_one_or_with_commas() -> None:
    found = gates.parse(["lora_tax<=0.15, p99_ttft_ms <= 500", "output_throughput>=1e2"])
    wanted = [("lora_tax", "<=", 0.15), ("p99_ttft_ms", "<=", 500.0), ("output_throughput", ">=", 100.0)]
    assert found == [Gate(*one) for one in wanted]
    assert gates.parse([str(one) for one in found]) == found
    assert gates.parse(["ttft_p99_ms<=500"]) == [Gate("p99_ttft_ms", "<=", 500.0)]  # the order of other tools
    assert gates.parse(["per_tenant.t1.itl_p99_ms<=9"])[0].figure == "per_tenant.t1.p99_itl_ms"
    assert gates.parse([]) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lora_tax", "is none"),
        ("lora_tax<0.1", "is none"),
        ("", "is none"),
        ("lora_tax<=", "is none"),
        ("lora_tax<=1e", "1e is no number"),
        ("lora_tax<=1e999", "1e999 is no number"),
        ("lora_taxes<=1", "did you mean `lora_tax`"),
        (",".join(["lora_tax<=1"] * 257), "at most 256"),
    ],
)
def test_a_gate_that_cannot_be_judged_is_named_before_the_measurement(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        gates.parse([text])


def test_the_bound_of_a_figure_is_judged_where_there_is_one() -> None:
    result = {"lora_tax": 0.1, "lora_tax_low": 0.05, "lora_tax_high": 0.2, "output_throughput": 9.0}
    assert outcomes(result, "lora_tax<=0.15,lora_tax<=0.2,lora_tax>=0.04,lora_tax>=0.06") == [False, True, True, False]
    assert outcomes(result, "output_throughput>=9,output_throughput>=9.1") == [True, False]


def test_the_ratio_to_another_engine_is_judged_by_its_lower_bound() -> None:
    result = compared()  # the median is 5.25, the bound 5
    assert outcomes(result, "ratios.llama_cpp>=5,ratios.llama_cpp>=5.1,ratios.llama_cpp<=5.2") == [True, False, False]


def test_each_measurement_is_judged_and_named() -> None:
    found = gates.judged(swept(), gates.parse(["engines.infeng.median_ttft_ms<=150"]))
    assert [(one["of"], one["passed"]) for one in found] == [
        ("adapters 1, rank 8", True), ("adapters 2, rank 8", False),
        ("adapters 1, rank 16", True), ("adapters 2, rank 16", False)]  # fmt: skip
    assert "missed, it is 200" in gates.sentence(found[1])


@pytest.mark.parametrize("value", [None, "x", True, float("nan"), float("inf"), [1.0], {}])
def test_a_figure_that_is_missing_or_no_number_misses_its_gate(value: Any) -> None:
    found = gates.judged({"lora_tax": value}, gates.parse(["lora_tax<=1"]))
    assert [one["passed"] for one in found] == [False]
    assert gates.sentence(found[0]) == "gate lora_tax<=1: missed, the result has no such figure"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kept", "missed"),
    [
        (["lora-tax", "--adapters", "1", "--rank", "2", "--context", "8", "--steps", "2", "--pairs", "3"],
         "lora_tax<=99", "lora_tax<=-0.99"),
        (["pace", "--rows", "1", "--prompt", "64", "--pairs", "1"], "p99_itl_ms<=60000", "itl_p99_ms<=1e-9"),
        (["zipf", "--adapters", "1", "--rank", "2", "--num-requests", "2", "--max-new-tokens", "2", "--prompts",
          "random:8", "--pairs", "1", "--warmup", "0"], "ttft_p99_ms<=60000", "p99_ttft_ms<=1e-9"),
    ],
    ids=["lora-tax", "pace", "zipf"],
)  # fmt: skip
def test_a_missed_limit_is_named_and_exits_with_1(
    words: list[str], kept: str, missed: str, tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    call = ["bench", *words, "--synthetic", str(tiny_config), "-t", "1", "--json", str(out)]
    assert main([*call, "--gate", kept]) == 0
    assert "kept, it is" in capsys.readouterr().err
    assert [one["passed"] for one in json.loads(out.read_text())["gates"]] == [True]
    assert main([*call, "--gate", kept, "--gate", missed]) == 1
    assert "missed, it is" in capsys.readouterr().err
    assert [one["passed"] for one in json.loads(out.read_text())["gates"]] == [True, False]


def test_an_unknown_figure_costs_no_measurement(tiny_config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--synthetic", str(tiny_config), "--context", "8", "--gate", "quickness>=1"]) == 2
    said = capsys.readouterr()
    assert "no result has such a figure" in said.err and not said.out
