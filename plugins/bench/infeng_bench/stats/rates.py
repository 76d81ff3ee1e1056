"""Rates, and shares of the machine's ceilings, from times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infeng_bench.stats.summary import spread

if TYPE_CHECKING:
    from infeng_bench.kernels.roofline import Roofline


@dataclass(frozen=True)
class Ceiling:
    """The limits of a kernel or an engine on this machine."""

    dram_bytes_per_s: float
    int8_macs_per_s: float  # with the instructions that it may use; 0: unknown, or it does not multiply int8

    @staticmethod
    def of(roofline: Roofline | None, features: Collection[str], is_int8: bool) -> Ceiling | None:
        """Return the ceiling of code that uses ``features``; None without a roofline."""
        if roofline is None:
            return None
        return Ceiling(roofline.dram_bytes_per_s, roofline.int8_of(features) if is_int8 else 0.0)


def rates(
    macs: int, nbytes: int, seconds: Sequence[float], *, threads: int, clock_hz: float, ceiling: Ceiling | None
) -> dict[str, Any]:
    """Return the figures of ``macs`` multiply-adds over ``nbytes`` bytes. seconds: the readings.

    Rates are those of the median. ``macs_per_cycle`` is per core. ``dram_fraction`` and ``int8_fraction`` are shares of
    each ceiling; ``roofline_fraction`` is the share of the lower one for this ratio of bytes and multiply-adds, which
    ``bound`` names.
    """
    times = spread(seconds)
    median = times["median"]
    found: dict[str, Any] = {
        "seconds": times,
        "gmacs_per_s": macs / median / 1e9,
        "macs_per_cycle": macs / median / clock_hz / threads,
        "bytes_per_s": nbytes / median,
    }
    return found | fractions(macs, nbytes, median, ceiling)


def fractions(macs: int, nbytes: int, seconds: float, ceiling: Ceiling | None) -> dict[str, Any]:
    """Return the shares of the ceilings that work of ``seconds`` reached; {} without a ceiling."""
    if ceiling is None:
        return {}
    at_dram = nbytes / ceiling.dram_bytes_per_s
    found: dict[str, Any] = {"dram_fraction": at_dram / seconds}
    if ceiling.int8_macs_per_s:
        at_int8 = macs / ceiling.int8_macs_per_s
        found |= {
            "int8_fraction": at_int8 / seconds,
            "roofline_fraction": max(at_dram, at_int8) / seconds,
            "bound": "memory" if at_dram >= at_int8 else "arithmetic",
        }
    return found


def rows_of_traffic(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the first rows of a printed table of served requests: rates and latencies."""
    yield ["requests", f"{result['completed']} in {result['duration']:.1f} s"]
    yield ["requests/s", f"{result['request_throughput']:.2f}"]
    yield ["new tokens/s", f"{result['output_throughput']:.1f}"]
    yield ["all tokens/s", f"{result['total_token_throughput']:.1f}"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        if f"median_{name}_ms" in result:
            yield [f"{name} ms", f"median {result[f'median_{name}_ms']:.1f}, p99 {result[f'p99_{name}_ms']:.1f}"]
