"""What becomes worse is found and named, and the noise of a shared machine is not."""

from __future__ import annotations

import pytest
from nightly_parts import COST, KINDS, LOSS, RATE, TIME, Night, Nights, run_of, steady

pytest.importorskip("infeng_nightly", reason="the nightly wheel is not installed")

from infeng_nightly import night as nights
from infeng_nightly import report
from infeng_nightly.history import Run
from infeng_nightly.judging import LAST, Judgement, judge


def judged(night: Night, earlier: list[Run]) -> list[Judgement]:
    """Judge a night as the command does: what seems worse is measured again."""
    found = nights.judge(night.run(), earlier)
    for _ in range(nights.AGAIN):
        if any(one.verdict == "worse" for one in found):
            found = nights.confirmed(found, nights.judge(night.run(), earlier))
    return found


def worse(found: list[Judgement]) -> list[str]:
    return [one.figure.what for one in found if one.verdict == "worse"]


@pytest.mark.parametrize("seed", range(5))
def test_none_is_named_in_20_quiet_pairs(seed: int) -> None:
    drawn = Nights(seed)
    for _ in range(20):
        assert worse(judged(drawn.night(), [drawn.night().run()])) == []


def test_a_quiet_year_names_almost_nothing() -> None:
    drawn, earlier, named = Nights(99), [], 0
    for day in range(365):
        night = drawn.night()
        named += len(worse(judged(night, earlier[-20:])))
        earlier.append(night.run(f"{day:04}"))
    assert named <= 2  # of 3,650 judgements


@pytest.mark.parametrize("what", [name for name, (kind, _) in KINDS.items() if kind.spread < 0.02])
def test_a_regression_of_10_percent_is_found_and_named(what: str) -> None:
    found, others = 0, 0
    for seed in range(20):
        drawn = Nights(1000 + seed)
        earlier = [drawn.night().run(f"{day}") for day in range(5)]
        names = worse(judged(drawn.night({what: 0.1}), earlier))
        found += what in names
        others += len(set(names) - {what})
    assert found >= 19 and others == 0


def test_a_regression_of_10_percent_is_found_after_a_single_run() -> None:
    found = 0
    for seed in range(40):
        drawn = Nights(2000 + seed)
        found += "decode 4" in worse(judged(drawn.night({"decode 4": 0.1}), [drawn.night().run()]))
    assert found >= 34  # of 40


def test_the_interval_holds_the_true_change() -> None:
    held = 0
    for seed in range(100):
        drawn = Nights(3000 + seed)
        earlier = [drawn.night().run(f"{day}") for day in range(6)]
        one = next(
            one for one in nights.judge(drawn.night({"prefill": 0.2}).run(), earlier) if one.figure.what == "prefill"
        )
        held += one.low <= -0.2 <= one.high
    assert held >= 95


def test_one_disturbed_run_of_the_past_hides_no_regression() -> None:
    past = [steady(100.0)] * 4 + [steady(40.0)] + [steady(101.0)] * 2
    assert judge(steady(88.0), past).verdict == "worse"
    assert judge(steady(99.0), past).verdict == "same"


def test_a_machine_that_varies_from_night_to_night_widens_the_interval() -> None:
    calm = judge(steady(92.0), [steady(100.0 + off) for off in (0, 0.3, -0.3, 0.2, -0.2, 0.1, 0, -0.1)])
    rough = judge(steady(92.0), [steady(100.0 + off) for off in (0, 9, -9, 7, -8, 5, 0, -6)])
    assert calm.verdict == "worse" and rough.verdict == "same"
    assert rough.high - rough.low > 2 * (calm.high - calm.low)


def test_the_last_runs_count() -> None:
    past = [steady(300.0)] * 10 + [steady(100.0)] * LAST
    assert judge(steady(100.0), past).verdict == "same"
    assert judge(steady(100.0), past).runs == LAST
    assert judge(steady(100.0), [steady(300.0)]).verdict == "worse"


def test_the_direction_of_a_figure_decides_what_is_worse() -> None:
    past = [steady(100.0, TIME)] * 3
    assert judge(steady(120.0, TIME), past).verdict == "worse"
    assert judge(steady(80.0, TIME), past).verdict == "better"
    assert judge(steady(80.0), [steady(100.0)] * 3).verdict == "worse"
    assert judge(steady(120.0), [steady(100.0)] * 3).verdict == "better"


def test_a_share_is_compared_by_what_it_adds_to_the_whole() -> None:
    def cost(*readings: float) -> object:
        from infeng_nightly.figures import Figure

        return Figure.of(COST, readings, model="demo", what="cost")

    past = [cost(0.02, 0.021, 0.019)] * 4  # type: ignore[list-item]
    assert judge(cost(0.025, 0.026, 0.024), past).verdict == "same"  # type: ignore[arg-type]  # a fourth more of nothing
    assert judge(cost(0.13, 0.12, 0.14), past).verdict == "worse"  # type: ignore[arg-type]
    assert judge(cost(-0.01, 0.0, 0.01), past).verdict == "same"  # type: ignore[arg-type]


def test_a_figure_without_noise_may_not_change_by_its_least() -> None:
    past = [steady(0.074, LOSS)] * 3
    assert judge(steady(0.0745, LOSS), past).verdict == "same"
    assert judge(steady(0.085, LOSS), past).verdict == "worse"


def test_a_first_figure_is_new_and_other_processors_do_not_count() -> None:
    run = run_of([steady(50.0)])
    other = run_of([steady(100.0)], machine={"cpu": "Other 1", "cores": 2})
    fewer = run_of([steady(100.0)], machine={"cpu": "Made-up 9000", "cores": 1})
    assert [one.verdict for one in nights.judge(run, [other, fewer])] == ["new"]
    assert [one.verdict for one in nights.judge(run, [other, run_of([steady(100.0)])])] == ["worse"]


def test_runs_with_other_settings_do_not_count() -> None:
    other = run_of([steady(100.0)], settings={"format": "int4-g64"})
    assert [one.verdict for one in nights.judge(run_of([steady(50.0)]), [other])] == ["new"]
    assert [one.verdict for one in nights.judge(run_of([steady(50.0)], settings=other.settings), [other])] == ["worse"]


def test_other_engines_are_not_judged() -> None:
    run = run_of([steady(50.0, engine="llama_cpp"), steady(100.0)])
    assert [one.figure.engine for one in nights.judge(run, [run_of([steady(100.0, engine="llama_cpp")])])] == ["infeng"]


def test_what_is_not_worse_again_is_not_named() -> None:
    earlier = [run_of([steady(100.0), steady(100.0, what="prefill")])]
    first = nights.judge(run_of([steady(80.0), steady(80.0, what="prefill")]), earlier)
    again = nights.judge(run_of([steady(99.0), steady(81.0, what="prefill")]), earlier)
    assert worse(first) == ["decode", "prefill"] and worse(nights.confirmed(first, again)) == ["prefill"]


def test_a_regression_is_printed_with_its_name_and_interval() -> None:
    found = nights.judge(run_of([steady(80.0, work="decode:rows=4")]), [run_of([steady(100.0, work="decode:rows=4")])])
    said = report.lines(found, processor="Made-up 9000, 2 cores")
    assert said[-1].startswith("REGRESSION: demo: decoding, decode:rows=4: 20.0% worse (-2")
    assert "80.0 tokens/s now, 100 tokens/s before, 1 run" in said[-1]
    calm = report.lines(nights.judge(run_of([steady(100.0)]), [run_of([steady(100.0)])]), processor="x")
    assert calm[-1] == "no figure became worse, of 1 with earlier runs of this processor"


def test_the_prior_is_what_decides_after_one_run() -> None:
    narrow = judge(steady(93.0, RATE), [steady(100.0)])
    assert narrow.runs == 1 and narrow.low < narrow.change < narrow.high and narrow.before == pytest.approx(100.0)
