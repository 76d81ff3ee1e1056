"""What a profile costs: the same engine's steps with and without one, in turn, median of the ratios pair by pair."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pytest
from infeng_bench.models import synthetic
from infeng_profile import profile

from infeng_core import Engine, SamplingParams

CONTEXT = 64
PAIRS = 40
SECONDS = 0.1  # of steps on each side of a pair


def block(engine: Engine, steps: int) -> float:
    """Return the median seconds of a step."""
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def pairs(engine: Engine, steps: int) -> list[tuple[float, float]]:
    """Return (without, with) for each pair; who comes first changes, for the context grows."""
    found = []
    for index in range(PAIRS):
        plain = block(engine, steps) if index % 2 else 0.0
        with profile(engine):
            measured = block(engine, steps)
        found.append((plain or block(engine, steps), measured))
    return found


@pytest.mark.parametrize("shape", ["smollm2-135m", "tinyllama-1.1b"])
def test_profile(benchmark: Any, shape: str) -> None:
    """One row that decodes; ``overhead`` is the median of with / without, less one."""
    prompt = np.random.default_rng(0).integers(300, 31000, CONTEXT).tolist()
    with Engine(synthetic.native_directory(shape, "int4-g64")) as engine:
        stream = engine.submit(prompt, SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True))
        while not stream.pending():
            engine.step()
        steps = max(3, min(40, int(SECONDS / block(engine, 5))))
        found = benchmark.pedantic(pairs, args=(engine, steps), rounds=1)
        stream.cancel()
    ratios = sorted(measured / plain for plain, measured in found)
    benchmark.extra_info |= {
        "overhead": round(statistics.median(ratios) - 1, 5),
        "overhead_low": round(ratios[len(ratios) // 4] - 1, 5),
        "overhead_high": round(ratios[len(ratios) * 3 // 4] - 1, 5),
        "ms_per_step": round(statistics.median(plain for plain, _ in found) * 1e3, 3),
    }
