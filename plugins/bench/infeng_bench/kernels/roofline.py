"""The machine's roofline: DRAM bandwidth and int8 peak, the ceilings of a kernel's figures."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from infeng_inspect.api import memory

from infeng_bench.kernels import probe
from infeng_bench.reports import machine, results
from infeng_core.api import UsageError
from infeng_core.api.kernels import closure, detect

KIND = "roofline"
STREAMS = (1, 2, 4)
PREFETCH = (0, 512, 1024, 2048, 4096, 8192)  # bytes ahead
BUFFER = 1 << 30  # bytes
ROUNDS = 5


@dataclass(frozen=True)
class Roofline:
    """Ceilings, each the best of several readings: a disturbed reading can only be too low."""

    threads: int
    dram_bytes_per_s: float  # all threads together
    dram_one_thread: float
    int8: Mapping[str, float]  # multiply-adds per second of all threads, by instruction set
    clock_hz: float
    reading: Mapping[str, int]  # {"streams", "prefetch"} of the best reading

    @property
    def int8_macs_per_s(self) -> float:
        """The peak of the fastest instruction set; 0 if no loop is built for this processor."""
        return max(self.int8.values(), default=0.0)

    def int8_of(self, features: Collection[str]) -> float:
        """Return the peak of a kernel that uses only ``features``; 0 if unknown."""
        allowed = closure(features)
        return max((rate for isa, rate in self.int8.items() if isa in allowed), default=0.0)

    def to_dict(self) -> dict[str, object]:
        """Return the figures by their names in results."""
        return {
            "dram_bytes_per_s": self.dram_bytes_per_s,
            "dram_bytes_per_s_one_thread": self.dram_one_thread,
            "dram_reading": dict(self.reading),
            "int8_macs_per_s": dict(self.int8),
            "clock_hz": self.clock_hz,
        }


def measure(threads: int, *, buffer: int | None = None, rounds: int = ROUNDS, seconds: float = 0.05) -> Roofline:
    """Measure the machine on ``threads`` threads in some seconds.

    buffer: bytes to read (default: ``default_buffer()``). rounds: readings per setting. seconds: of one int8 reading.
    """
    clock = probe.clock_hz()
    with contextlib.closing(probe.Memory(buffer or default_buffer(), threads)) as memory:
        settings = [(streams, prefetch) for streams in STREAMS for prefetch in PREFETCH]
        first = {setting: memory.read(threads, *setting) for setting in settings}
        best = sorted(first, key=lambda setting: -first[setting])[:3]
        again = {setting: max(memory.read(threads, *setting) for _ in range(rounds)) for setting in best}
        streams, prefetch = max(again, key=lambda setting: again[setting])
        one = max(memory.read(1, streams, prefetch) for _ in range(max(1, rounds // 2)))
    int8 = {isa: max(probe.int8_macs_per_s(isa, threads, seconds) for _ in range(rounds)) for isa in probe.int8_isas()}
    reading = {"streams": streams, "prefetch": prefetch}
    return Roofline(threads, max(*first.values(), *again.values()), one, int8, clock, reading)


def from_result(path: str | Path, threads: int) -> Roofline:
    """Read an earlier result; raises UsageError unless it is of ``roofline``, this machine and this thread count."""
    result = results.read(path)
    if result["kind"] != KIND:
        raise UsageError(str(path), f"is a result of {result['kind']}", "give one of infeng bench roofline")
    here = machine.machine()
    for what, then, now in (
        ("threads", result["threads"], threads),
        ("processor", result["machine"]["cpu"], here["cpu"]),
        ("features", result["features"], machine.features()),
    ):
        if then != now:
            raise UsageError(str(path), f"{what}: measured with {then}, now {now}", "measure again")
    return Roofline(
        threads,
        result["dram_bytes_per_s"],
        result["dram_bytes_per_s_one_thread"],
        result["int8_macs_per_s"],
        result["clock_hz"],
        result["dram_reading"],
    )


def default_buffer() -> int:
    """Return 1 GB, or twice the L3 cache if that is more, but at most a quarter of the available memory, in bytes."""
    caches = detect().caches
    wanted = max(BUFFER, 2 * int(caches.get("l3") or 0))
    return min(wanted, max(memory().get("available", wanted) // 4, probe.HUGE))
