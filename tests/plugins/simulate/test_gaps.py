"""The histogram of a simulation's inter-token latencies."""

import numpy as np
import pytest
from infeng_simulate.gaps import HistogramGaps


def test_gaps_keep_mean_and_deviation_exactly_and_quantiles_within_their_bins() -> None:
    gaps = HistogramGaps()
    gaps.add(0.010, 90)
    gaps.add(0.020, 9)
    gaps.add(1.0)
    values = np.array([0.010] * 90 + [0.020] * 9 + [1.0])
    figures = gaps.figures()
    assert len(gaps) == 100
    assert figures["mean_itl_ms"] == pytest.approx(1000 * values.mean())
    assert figures["std_itl_ms"] == pytest.approx(1000 * values.std())
    assert figures["median_itl_ms"] == pytest.approx(10, rel=0.003)
    assert figures["p99_itl_ms"] == pytest.approx(20, rel=0.003)
    assert gaps.quantile(1.0) == pytest.approx(1.0, rel=0.003)
    assert not HistogramGaps().figures()


@pytest.mark.parametrize("times", [[0.1, 0.1001, 0.1002], [0.1, 0.11, 0.15], []])
def test_gaps_added_in_bulk_count_like_single_gaps(times: list[float]) -> None:
    single, together = HistogramGaps(), HistogramGaps()
    for seconds in times:
        single.add(seconds, 3)
    together.add_all(times, 3)
    assert together.figures() == pytest.approx(single.figures())
