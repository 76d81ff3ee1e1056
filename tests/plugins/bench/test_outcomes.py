"""Figures of traffic, against cases that can be computed by hand."""

import numpy as np
import pytest
from infeng_bench.load import outcomes
from infeng_bench.load.kinds import Load
from infeng_bench.load.outcomes import Outcomes, Targets
from infeng_bench.load.traffic import draw
from infeng_bench.stats import fairness, summary


def answered(text: str, arrived: list[float], first: list[float], last: list[float], tokens: list[int]) -> Outcomes:
    """Return the outcomes of requests that were all answered."""
    found = Outcomes.empty(draw(Load.parse(text), len(arrived), 0, 2048))
    found.arrived[:], found.begun[:], found.first[:], found.last[:] = arrived, arrived, first, last
    found.tokens[:], found.is_done[:] = tokens, True
    return found


def test_latencies_and_rates_of_three_requests() -> None:
    found = answered("poisson:rate=inf,prompt=10,output=5", [0, 1, 2], [1, 3, 2.5], [5, 3, 4.5], [5, 1, 3])
    figures = outcomes.figures(found, Targets(ttft=1.5, tpot=1.0))
    assert figures["duration"] == 5
    assert figures["request_throughput"] == pytest.approx(3 / 5)
    assert figures["output_throughput"] == pytest.approx(9 / 5)
    assert figures["total_token_throughput"] == pytest.approx(39 / 5)
    assert figures["mean_ttft_ms"] == pytest.approx(1000 * (1 + 2 + 0.5) / 3)
    assert figures["median_ttft_ms"] == pytest.approx(1000)
    assert figures["mean_tpot_ms"] == pytest.approx(1000)  # 4 s for 4 tokens, 2 s for 2, and one of one token
    assert figures["median_e2el_ms"] == pytest.approx(2500)
    assert figures["goodput"] == pytest.approx(2 / 5)  # the second took 2 s to its first token
    assert figures["goodput_share"] == pytest.approx(2 / 3)
    assert figures["completed"] == 3
    assert figures["prefill_tokens_per_s"] == pytest.approx(30 / 3)  # from 0 to 1 and from 1 to 3
    assert figures["decode_tokens_per_s"] == pytest.approx(6 / 4)  # from 1 to 5


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [([0, 1, 5], [2, 3, 6], 4), ([0, 1], [9, 2], 9), ([3, 0], [4, 1], 2), ([1], [1], 0)],
)
def test_time_within_overlapping_spans_counts_once(begins: list[float], ends: list[float], expected: float) -> None:
    assert summary.covered(np.array(begins, float), np.array(ends, float)) == expected


def test_refused_requests_reduce_goodput_and_are_counted_by_reason() -> None:
    found = answered("poisson:rate=inf,prompt=10,output=5", [0, 0], [1, 1], [2, 2], [3, 3])
    found.is_done[1] = False
    found.refuse("queue_full")
    figures = outcomes.figures(found, Targets())
    assert (figures["completed"], figures["refused"]) == (1, {"queue_full": 1})
    assert figures["goodput_share"] == 0.0  # half a second a token
    assert outcomes.figures(found, Targets(tpot=0.5))["goodput_share"] == 0.5


def test_without_answers_there_are_no_rates() -> None:
    figures = outcomes.figures(Outcomes.empty(draw(Load.parse("poisson:rate=1"), 3, 0, 2048)), Targets())
    assert figures == {"completed": 0, "refused": {}, "starved": 0}


def test_a_request_beyond_ten_median_waits_and_its_target_has_starved() -> None:
    found = answered("poisson:rate=inf", [0.0] * 5, [9.0] * 5, [9.0] * 5, [1] * 5)
    found.begun[:] = [0.1, 0.2, 0.2, 1.9, 30.0]
    assert outcomes.starved(found, Targets(ttft=2.0, patience=10)) == 1
    assert outcomes.starved(found, Targets(ttft=1.0, patience=5)) == 2
    assert outcomes.starved(found, Targets(ttft=1.0, patience=200)) == 0
    found.begun[:] = np.nan  # an engine that does not tell: the wait for the first token counts
    found.first[:] = [1, 1, 1, 1, 11]
    assert outcomes.starved(found, Targets(ttft=2.0, patience=10)) == 1


@pytest.mark.parametrize(("values", "expected"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([3, 1], 0.8), ([], 1.0)])
def test_jains_index(values: list[float], expected: float) -> None:
    assert fairness.jain(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("demands", "supply", "expected"),
    [([1, 10, 10], 11, [1, 5, 5]), ([2, 3], 10, [2, 3]), ([4, 4], 4, [2, 2]), ([6, 1, 3], 6, [2.5, 1, 2.5])],
)
def test_max_min_fairness_serves_the_smallest_demand_first(
    demands: list[float], supply: float, expected: list[float]
) -> None:
    assert fairness.max_min(np.array(demands, float), supply).tolist() == pytest.approx(expected)


def test_a_tenant_delayed_by_a_greedy_one_lowers_jains_index() -> None:
    """Two tenants ask at once for the same; who is served first in the first half makes the difference."""
    text, count = "tenants:greedy=1,others=1,rate=inf,prompt=10,output=5", 200
    moments = np.linspace(1, 100, count)
    traffic = draw(Load.parse(text), count, 0, 2048)
    in_turn = answered(text, [0.0] * count, moments.tolist(), moments.tolist(), [5] * count)
    assert fairness.jain(fairness.shares(in_turn)) > 0.99
    behind = np.empty(count)
    behind[np.argsort(traffic.tenant, kind="stable")] = moments  # all of the greedy one's come first
    after = answered(text, [0.0] * count, behind.tolist(), behind.tolist(), [5] * count)
    assert fairness.jain(fairness.shares(after)) < 0.95


def test_tenants_have_figures_of_their_own() -> None:
    found = answered("tenants:greedy=1,others=1,rate=inf,prompt=10,output=5", [0.0] * 4, [1, 2, 3, 4], [5] * 4, [3] * 4)
    found.traffic.tenant[:] = [0, 0, 0, 1]
    shown = outcomes.groups(found, Targets())["per_tenant"]
    assert [one["requests"] for one in shown.values()] == [3, 1]
    assert shown["other0"]["mean_ttft_ms"] == pytest.approx(4000)
    assert shown["greedy"]["median_ttft_ms"] == pytest.approx(2000)
