"""Figures as people read them: three significant digits, with the unit that the figure's name says."""

from __future__ import annotations

import math
from typing import Any

LABELS = {
    "lora_tax": "cost of adapters",
    "ttft": "time to first token",
    "tpot": "time per token",
    "itl": "time between tokens",
    "e2el": "time of a request",
    "output_throughput": "new tokens/s",
    "total_token_throughput": "all tokens/s",
    "request_throughput": "requests/s",
    "tokens_per_s": "tokens/s",
    "decode_tokens_per_s": "decoded tokens/s",
    "prefill_tokens_per_s": "prompt tokens/s",
    "adapter_swap_ms": "load of an adapter",
    "adapter_load_ms": "first load of an adapter",
    "adapter_wait_ms": "wait for an adapter",
    "idle_adapter_swap_ms": "load of an adapter, engine idle",
    "cpu_utilization": "cores busy",
    "peak_rss_bytes": "peak memory",
    "dram_fraction": "share of DRAM's bandwidth",
    "int8_fraction": "share of the int8 peak",
    "load_seconds": "load of the model",
}
"""Names for people, of figures and of the latencies in their names."""

RATES = {
    "request_throughput": "requests/s", "output_throughput": "tokens/s", "total_token_throughput": "tokens/s",
    "goodput": "requests/s", "request_rate": "requests/s", "gmacs_per_s": "GMAC/s",
}  # fmt: skip
SHARES = ("lora_tax", "unfused_tax", "prefill_loss", "total_loss", "steal", "cpu_utilization")
RATIOS = ("ratios", "ratio_low", "ratio_spread", "mixed_over_single")
TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def digits(value: float, count: int = 3) -> str:
    """Return a number with ``count`` significant digits, without an exponent from 1e-4 to 1e15; 13,100 has commas."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    places = count - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if not 1e-4 <= abs(rounded) < 1e15:
        return f"{value:.{count - 1}e}"
    return f"{rounded:,.{max(0, count - 1 - math.floor(math.log10(abs(rounded))))}f}"


def shown(name: str, value: Any) -> str:
    """Return a value of a result under its dotted name: ``shown("peak_rss_bytes", 1.31e9)`` is "1.31 GB".

    Whole numbers that count something are given in full.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "yes" if value is True else "no" if value is False else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "-"
    unit = unit_of(name)
    if unit == "s" or unit == "ms":
        return _scaled(float(value) * (1e-3 if unit == "ms" else 1.0), TIMES)
    if unit == "B":
        return _scaled(float(value), SIZES)
    if unit == "B/s":
        return f"{_scaled(float(value), SIZES)}/s"
    if unit == "%":
        return f"{digits(100 * value)}%"
    if unit == "times":
        return f"{digits(value)} x"
    number = f"{value:,}" if isinstance(value, int) else digits(value)
    return f"{number} {unit}".rstrip()


def unit_of(name: str) -> str:
    """Return the unit of a figure by its dotted name: "ms", "s", "B", "B/s", "%", "times", a rate, or "".

    The innermost name that says one counts: ``tokens_per_s.with.median`` is a rate.
    """
    return next((unit for part in reversed(name.split(".")) if (unit := _unit(part))), "")


def _unit(name: str) -> str:
    if name in RATIOS or name.endswith(("_ratio", "_ratio_low")):
        return "times"
    stem = name.removesuffix("_low").removesuffix("_high").removesuffix("_spread")
    if stem in RATES:
        return RATES[stem]
    if stem in SHARES or stem.endswith(("_share", "_fraction", "_confidence", "utilization")):
        return "%"
    if stem.endswith("bytes_per_s"):
        return "B/s"
    if stem.endswith("tokens_per_s"):
        return "tokens/s"
    if stem.endswith("_ms") or "_ms_" in stem or stem in ("adapter_swap", "swap_itl"):
        return "ms"
    if "bytes" in stem:
        return "B"
    return "s" if stem.endswith("seconds") or stem == "duration" else ""


def label(name: str) -> str:
    """Return a figure's name for people; a nested name keeps what it is nested in."""
    *above, last = name.split(".")
    if last in ("median", "min", "max", "q1", "q3") and above:
        return f"{label('.'.join(above))}, {'median' if last == 'median' else last}"
    words = LABELS.get(last) or _latency(last) or _plain(last)
    return ": ".join([*(LABELS.get(part) or _plain(part) for part in above), words])


def _latency(name: str) -> str:
    """Return "time to first token, p99" for ``p99_ttft_ms``; "" for another name."""
    kind, _, rest = name.partition("_")
    stem = rest.removesuffix("_ms")
    return f"{LABELS[stem]}, {kind}" if rest.endswith("_ms") and stem in LABELS else ""


def _plain(name: str) -> str:
    if name.endswith("_bytes"):
        name = f"{name.removesuffix('_bytes')}_size"
    return name.removesuffix("_ms").removesuffix("_seconds").replace("_", " ")


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    """Return a value in the largest of the units, the largest first, in which it is at least 1."""
    if value == 0:
        return f"0 {next(name for factor, name in units if factor == 1)}"
    for factor, name in units:
        if abs(value) >= factor * 0.9995:
            return f"{digits(value / factor)} {name}"
    factor, name = units[-1]
    return f"{digits(value / factor)} {name}"
