"""Figures as reports show them."""

from __future__ import annotations

from typing import Any

import pytest
from infeng_report import units


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lora_tax", 0.4901, "49.0%"),
        ("tokens_per_s.with.median", 2491.0, "2,490 tokens/s"),
        ("core_use.0.busy", 0.5, "0.500"),
        ("lora_tax_low", -0.0123, "-1.23%"),
        ("median_ttft_ms", 1.31e4, "13.1 s"),
        ("p99_itl_ms", 0.0234, "23.4 µs"),
        ("p99_itl_ms", 999.7, "1.00 s"),
        ("tokens_per_s.median", 23.456, "23.5 tokens/s"),
        ("tokens_per_s.median", 12345.6, "12,300 tokens/s"),
        ("output_throughput", 9.999, "10.0 tokens/s"),
        ("request_throughput", 0.051234, "0.0512 requests/s"),
        ("peak_rss_bytes", 1_310_000_000, "1.31 GB"),
        ("bytes_per_s", 2.34e10, "23.4 GB/s"),
        ("ratios.llama_cpp", 5.25, "5.25 x"),
        ("ratio_low.llama_cpp", 5, "5.00 x"),
        ("seconds.median", 1e-3, "1.00 ms"),
        ("contention.steal_share", 0.05, "5.00%"),
        ("num_requests", 12345, "12,345"),
        ("rows", 4, "4"),
        ("zipf_alpha", 1.3, "1.30"),
        ("include_base", False, "no"),
        ("model", "m", "m"),
        ("median_ttft_ms", float("nan"), "-"),
        ("load_seconds", 0.0, "0 s"),
    ],
)
def test_a_figure_has_three_digits_and_its_unit(name: str, value: Any, text: str) -> None:
    assert units.shown(name, value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "1.00"), (9.996, "10.0"), (99.95, "100"), (1234567.0, "1,230,000"), (1e-7, "1.00e-07"),
     (-0.05678, "-0.0568"), (1e20, "1.00e+20"), (float("inf"), "inf")],
)  # fmt: skip
def test_three_digits_stand_whatever_the_size(value: float, text: str) -> None:
    assert units.digits(value) == text


def test_figures_have_names_for_people() -> None:
    assert units.label("p99_ttft_ms") == "time to first token, p99"
    assert units.label("lora_tax") == "cost of adapters"
    assert units.label("tokens_per_s.with.median") == "tokens/s: with, median"
    assert units.label("adapter_swap_ms") == "load of an adapter"
    assert units.label("adapter_bytes") == "adapter size"
    assert units.label("kv_bytes_per_position") == "kv bytes per position"
