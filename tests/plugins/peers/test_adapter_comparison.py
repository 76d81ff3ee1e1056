"""The arithmetic of requests with adapters, on times that are made up."""

from types import SimpleNamespace
from typing import Any

import pytest
from infeng_bench.load.arrivals import Arrival, Lengths
from infeng_bench.load.outcomes import Outcomes, latencies_of, rates
from infeng_bench.load.requests import Job, Reply, Served
from infeng_bench.stats.summary import covered
from infeng_peers import adapter_comparison
from infeng_peers.adapter_comparison import trial, variant
from infeng_peers.workload import Workload


def served(pace: float, adapters: str = "aab", ids: int = 0) -> Served:
    """Return a round of requests of 10 + 4 tokens, one after the other, ``pace`` seconds from token to token."""
    replies = []
    for index, name in enumerate(adapters):
        begin = 4 * pace * index
        moments = [begin + pace * step for step in (1, 2, 3, 4)]
        job = Job(0.0, [1] * 10, 4, None if name == "." else name)
        replies.append(Reply(job, begin, begin, moments, 4, [ids] * 4, ended=moments[-1]))
    seconds = 4 * pace * len(adapters)
    return Served(replies, seconds, 1.5 * seconds, 1000)


def test_rates_and_latencies_of_one_round() -> None:
    replies = served(0.5).replies
    found = rates(Outcomes.of(replies))
    assert (found["completed"], found["duration"]) == (3, 6.0)
    assert found["output_throughput"] == pytest.approx(12 / 6)
    assert found["total_token_throughput"] == pytest.approx(42 / 6)
    assert found["prefill_tokens_per_s"] == pytest.approx(30 / 1.5)
    assert found["decode_tokens_per_s"] == pytest.approx(9 / 4.5)
    opened, closed = (latencies_of(replies, is_closed=is_closed) for is_closed in (False, True))
    assert (opened["p99_ttft_ms"], closed["p99_ttft_ms"]) == (pytest.approx(4460), 500)  # since arrival, or admission
    assert closed["median_tpot_ms"] == closed["median_itl_ms"] == 500
    assert (closed["median_e2el_ms"], opened["median_e2el_ms"]) == (2000, 4000)


def test_overlapping_spans_of_time_count_once() -> None:
    assert covered([0, 1, 5, 5.5], [2, 3, 6, 5.6]) == 4
    assert covered([], []) == 0


def test_the_medians_of_pairs() -> None:
    mixed = [served(pace, ids=1) for pace in (1.0, 1.1, 1.3)]
    single = [served(pace) for pace in (0.9, 1.0, 1.0)]
    base = [served(1.0, ids=0) for _ in range(3)]
    found = adapter_comparison.of_engine({"mixed": mixed, "single": single, "base": base}, 2, is_closed=True)
    assert found["lora_tax"] == pytest.approx(0.1)
    assert found["lora_tax_spread"]["max"] == pytest.approx(0.3)
    assert found["mixed_over_single"] == pytest.approx(0.9)
    assert found["mixed_over_single_low"] == pytest.approx(1 / 1.3)
    assert found["mixed_over_single_low_confidence"] == pytest.approx(1 - 1 / 8)
    assert found["output_throughput"] == pytest.approx(1 / 1.1)
    assert found["answers_changed"] == 1.0
    assert found["cpu_utilization"] == pytest.approx(0.75)
    assert {name: group["requests"] for name, group in found["per_adapter"].items()} == {"a": 6, "b": 3}
    assert adapter_comparison.changed([served(1, "a.b", 1)], [served(1, "a.b", 0)]) == 1.0
    assert adapter_comparison.changed([served(1, "a.b", 1)], [served(1, "a.b", 1)]) == 0.0
    assert adapter_comparison.changed([served(1, "...", 1)], [served(1, "...", 0)]) is None


def test_ratios_are_ours_over_each_other_engine() -> None:
    ours = [served(pace) for pace in (0.2, 0.25, 0.25, 0.5, 0.1)]
    found = {"peer": {"mixed": [served(1.0)] * 5}, "infeng": {"mixed": ours}}
    result = adapter_comparison.compared(found, 2, is_closed=True)
    assert result["base"] == "infeng"
    assert result["ratios"] == {"peer": pytest.approx(4)}
    assert result["ratio_low"] == {"peer": pytest.approx(2)}
    assert result["ratio_spread"]["peer"]["max"] == pytest.approx(10)
    assert result["output_throughput"] == pytest.approx(4)
    assert len(result["pairs"]) == 5


def test_rounds_are_interleaved_and_warm_up_rounds_are_dropped() -> None:
    asked: list[tuple[str, list[str | None]]] = []

    def engine(name: str) -> Any:
        def serve(jobs: list[Job], places: int) -> Served:
            asked.append((name, [job.adapter for job in jobs]))
            return served(1.0, "a" * len(jobs), ids=len(asked))

        return SimpleNamespace(name=name, serve=serve)

    load = Workload(3, 4, 0.0, True, 7, float("inf"), Lengths.parse("5"))
    found = adapter_comparison.rounds(
        [engine("x"), engine("y")],
        load,
        ["a", "b"],
        300,
        64,
        places=2,
        warmup=1,
        count=2,
        variants=["mixed", "base"],
    )
    drawn, none = ["a", "b", None], [None] * 3
    turn = [("x", drawn), ("x", none), ("y", drawn), ("y", none)]
    assert asked == [("x", drawn), ("y", drawn), *turn, *turn, *turn]  # a short trial first
    assert [one.replies[0].ids[0] for one in found["y"]["base"]] == [10, 14]


def test_a_workload_is_the_same_for_the_same_seed_and_another_one_for_another_round() -> None:
    load = Workload(50, 4, 1.3, False, 7, 10.0, Lengths.parse("5:9"))
    first, second = (load.jobs(number, ["a", "b"], 300, 64) for number in (0, 1))
    assert first == load.jobs(0, ["a", "b"], 300, 64)
    assert first != second
    assert [job.at for job in first] == sorted(job.at for job in first)
    assert all(5 <= len(job.prompt) <= 9 and job.new == 4 for job in first)
    assert {job.adapter for job in variant(first, "single", ["a", "b"])} == {"a"}
    assert {job.adapter for job in variant(first, "base", ["a", "b"])} == {None}
    assert [job.prompt for job in variant(first, "base", ["a"])] == [job.prompt for job in first]
    assert [job.adapter for job in trial(["a"], 300)] == ["a", None]


def test_texts_and_traces_set_the_lengths() -> None:
    load = Workload(2, 4, 0.0, False, 7, float("inf"), None, texts=[[1], [2, 2], [3, 3, 3, 3]])
    seen = [job.prompt for number in range(3) for job in load.jobs(number, ["a"], 300, 7)]
    assert sorted(map(len, seen[:3])) == [1, 2, 3]  # all three before any again; the longest cut
    load = Workload(2, 2, 0.0, False, 7, float("inf"), None, trace=[Arrival(0.0, 5, 9), Arrival(1.5, 6, 1)])
    assert [(job.at, len(job.prompt), job.new) for job in load.jobs(0, ["a"], 300, 64)] == [(0.0, 5, 2), (1.5, 6, 1)]
