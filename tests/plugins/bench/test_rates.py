"""The arithmetic of figures."""

import pytest
from infeng_bench.stats.rates import Ceiling, fractions, rates
from infeng_bench.stats.summary import latencies, percentile, spread


def test_rates_are_computed_from_the_median() -> None:
    found = rates(6_000_000, 3000, [0.003, 0.001, 0.002], threads=2, clock_hz=1e6, ceiling=None)
    assert found["seconds"] == {"median": 0.002, "min": 0.001, "max": 0.003}
    assert found["gmacs_per_s"] == pytest.approx(3.0)
    assert found["macs_per_cycle"] == pytest.approx(1500)
    assert found["bytes_per_s"] == pytest.approx(1.5e6)
    assert "dram_fraction" not in found


def test_the_roofline_follows_from_bytes_and_multiplications() -> None:
    ceiling = Ceiling(dram_bytes_per_s=100.0, int8_macs_per_s=1000.0)
    memory = fractions(macs=100, nbytes=50, seconds=1.0, ceiling=ceiling)  # 0.5 s of reading, 0.1 s of arithmetic
    assert memory == {"dram_fraction": 0.5, "int8_fraction": 0.1, "roofline_fraction": 0.5, "bound": "memory"}
    arithmetic = fractions(macs=800, nbytes=50, seconds=1.0, ceiling=ceiling)
    assert (arithmetic["roofline_fraction"], arithmetic["bound"]) == (0.8, "arithmetic")


def test_without_an_int8_ceiling_only_memory_is_compared() -> None:
    assert fractions(100, 50, 1.0, Ceiling(100.0, 0.0)) == {"dram_fraction": 0.5}


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.99) == pytest.approx(9.9)
    assert percentile([7.0], 0.99) == 7.0


def test_latencies_are_milliseconds_under_the_usual_names() -> None:
    assert latencies("itl", [0.001, 0.003]) == {
        "mean_itl_ms": 2.0,
        "median_itl_ms": 2.0,
        "std_itl_ms": 1.0,
        "p99_itl_ms": pytest.approx(2.98),
    }
    assert latencies("itl", []) == {}


def test_a_spread_has_median_minimum_and_maximum() -> None:
    assert spread([3, 1, 2, 4]) == {"median": 2.5, "min": 1, "max": 4}
