"""`infeng bench roofline`: the machine's DRAM bandwidth, int8 peak and clock."""

from __future__ import annotations

import argparse

from infeng_bench import options
from infeng_bench.kernels import roofline
from infeng_bench.kernels.roofline import Roofline
from infeng_bench.reports import results


def configure(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "--buffer", options.size, None, "SIZE", "memory to read, such as 512MB (default: 1GB, or more)")
    options.add_pairs(parser, roofline.ROUNDS, "readings")
    options.add_threads(parser)
    options.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    threads = options.threads(arguments)
    found = roofline.measure(threads, buffer=arguments.buffer, rounds=arguments.rounds)
    result = results.record(roofline.KIND, found.to_dict(), threads=threads)
    return options.deliver(result, arguments, show(found))


def show(found: Roofline) -> list[str]:
    """Return the printed lines."""
    reading = f"{found.reading['streams']} streams a thread, prefetch {found.reading['prefetch']} bytes ahead"
    lines = [
        (f"DRAM read, {found.threads} threads", f"{found.dram_bytes_per_s / 1e9:.1f} GB/s"),
        ("DRAM read, 1 thread", f"{found.dram_one_thread / 1e9:.1f} GB/s"),
        ("best with", reading),
        ("clock", f"{found.clock_hz / 1e9:.2f} GHz"),
    ]
    for isa, rate in found.int8.items():
        cycle = rate / found.clock_hz / found.threads
        lines.append((f"int8, {isa}", f"{rate / 1e9:.0f} GMAC/s, {cycle:.0f} MAC/cycle a core"))
    width = max(len(name) for name, _ in lines)
    return [f"{name:{width}}  {value}" for name, value in lines]
