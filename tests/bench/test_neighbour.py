"""Decoding beside a foreign thread that never sleeps, on one of the engine's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from infeng_core import Engine, SamplingParams

STEPS = 25  # of a block
BLOCKS = 4  # of each kind, one alone, one beside the neighbour, ...
BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@contextmanager
def neighbour(cpu: int) -> Iterator[None]:
    """Keep ``cpu`` busy."""
    process = subprocess.Popen([sys.executable, "-c", BURN, str(cpu)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def steps(engine: Engine, count: int) -> list[float]:
    """Return the seconds of each of ``count`` steps."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        engine.step()
        found.append(time.perf_counter() - begin)
    return found


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a neighbour is put on one core")
@pytest.mark.parametrize("pin", [False, True], ids=["free", "pinned"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_busy_neighbour_on_one_of_two_cores(benchmark: Any, tinyllama: Any, rows: int, pin: bool) -> None:
    """``share``: throughput beside the neighbour over that alone. ``worst``: the slowest step over the median."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cpus)
    params = SamplingParams(temperature=0.0, max_tokens=1500, ignore_eos=True)
    random = np.random.default_rng(0)
    with Engine(tinyllama, threads=2, overrides={"threads.pin": pin}) as engine:
        streams = [engine.submit(random.integers(300, 31000, 256).tolist(), params) for _ in range(rows)]
        while not all(stream.is_ready for stream in streams):
            engine.step()
        steps(engine, 5)
        alone: list[float] = []
        beside: list[float] = []

        def block() -> None:
            alone.extend(steps(engine, STEPS))
            with neighbour(cpus[-1]):
                beside.extend(steps(engine, STEPS))

        benchmark.pedantic(block, rounds=BLOCKS)
    benchmark.extra_info["share"] = sum(alone) / sum(beside)
    benchmark.extra_info["worst"] = max(beside) / float(np.median(beside))
    benchmark.extra_info["worst_alone"] = max(alone) / float(np.median(alone))
    benchmark.extra_info["step_ms"] = [float(np.median(alone)) * 1e3, float(np.median(beside)) * 1e3]
