"""Every kernel of every installed library on typical problems; generated, so that a new kernel is measured unasked.

Weights stay in the caches here: this is arithmetic. ``infeng bench gemm`` streams them from memory.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from infeng_inspect.case import OneOp
from kernels import typical_op

from infeng_core import _native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins
from infeng_core.settings.config import EngineConfig


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One benchmark for each case, number of rows and kernel; none is made where benchmarks are skipped."""
    config = metafunc.config
    if config.getoption("benchmark_skip", False):
        metafunc.parametrize("chosen", [])
        return
    threads, plugins = worker_count(config), Plugins.discover()
    found = [
        pytest.param((fields, rows, kernel), id=f"{typical_op.key(fields)}-rows{rows}-{library.name}/{kernel.name}")
        for fields in typical_op.all_cases()
        for rows in config.getoption("--bench-rows")
        for library in libraries(plugins)
        for kernel in library.kernels
        if set(kernel.features) <= plugins.cpu.features
        if kernel.accepts(typical_op.problem(fields, rows, threads))
    ]
    metafunc.parametrize("chosen", found)


def worker_count(config: pytest.Config) -> int:
    """Return the workers to measure with: as asked, or those of an engine."""
    asked = config.getoption("--bench-threads")
    return asked or Plugins.discover().cpu.place(EngineConfig().threads).workers


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> _native.Pool:
    """Return workers as an engine has them."""
    return _native.Pool(worker_count(request.config))


def seconds(made: OneOp) -> float:
    """Return the time of one call of the program."""
    begin = time.perf_counter()
    made.once()
    return time.perf_counter() - begin


def test_kernel(benchmark: Any, chosen: Any, pool: _native.Pool, request: pytest.FixtureRequest) -> None:
    """Time one kernel; problems are groups, so that instruction sets stand side by side."""
    fields, rows, kernel = chosen
    budget, slowest = request.config.getoption("--bench-budget"), request.config.getoption("--bench-slowest")
    if rows > 1:  # a scalar kernel takes seconds for what a vector kernel does in a millisecond
        alone = typical_op.build(fields, kernel, 1, pool)
        expected = rows * min(seconds(alone), seconds(alone)) / alone.calls
        if expected > slowest:
            pytest.skip(f"a call would take about {expected:.1f} s; --bench-slowest sets the limit")
    made = typical_op.build(fields, kernel, rows, pool)
    seconds(made)  # memory is touched
    rounds = max(3, min(200, int(budget / max(seconds(made), 1e-9))))
    benchmark.group = f"{typical_op.key(fields)} rows {rows}"
    benchmark.pedantic(made.once, rounds=rounds, warmup_rounds=1)
    once = benchmark.stats["median"] / made.calls
    macs, nbytes = made.work()
    benchmark.extra_info |= {"us": round(once * 1e6, 2), "threads": pool.threads, "features": sorted(kernel.features)}
    if macs:
        benchmark.extra_info["gmacs_per_s"] = round(macs / once / 1e9, 2)
    if nbytes:
        benchmark.extra_info["gbytes_per_s"] = round(nbytes / once / 1e9, 2)
