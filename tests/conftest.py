"""Settings of all tests, which must be made before NumPy is imported."""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import caches
import pytest
from drawn import examples
from hypothesis import settings

from infeng_core.requests import chain, processor_thread

# Matrices of tests are small, so threads of a BLAS only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A process that a shell without job control starts in the background ignores Ctrl-C, and so would the programs that
# tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the time of an example means nothing on shared cores.
settings.register_profile("suite", max_examples=examples(100), deadline=None)
settings.load_profile("suite")


LONG = {"e2e", "docs", "kernels", "calibrate", "cli", "engine", "fair", "bench", "report", "serve"}
"""Folders with few but slow tests: whole engines, compilers, servers."""

LONGEST = "test_sanitizers.py"  # one test, which compiles the executor twice


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep tests and their processes away from the user's cache; some tests have a cache of their own."""
    folder = caches.shared(tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFENG_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let steps wait for logit processors on a busy machine; tests of late processors override this."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATIENCE", "PATIENCE_ALONE", "SLOW"):
            patch.setattr(processor_thread, name, 60.0)
        patch.setattr(chain, "MOST_BETWEEN", 60.0)
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, so that no process waits for one of them at the end."""
    tests = Counter(item.path for item in items)
    items.sort(
        key=lambda item: (item.path.name != LONGEST, LONG.isdisjoint(item.path.parts), -tests[item.path], item.path)
    )


def pytest_collection_finish() -> None:
    """Exclude tests and their imports from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options that select the benchmarks of kernels (bench/test_kernels.py) and their length."""

    def rows(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    group = parser.getgroup("infeng", "benchmarks of kernels")
    group.addoption("--bench-rows", type=rows, default=[1, 4, 16, 128], metavar="R,R", help="batch sizes (1,4,16,128)")
    group.addoption("--bench-threads", type=int, default=0, metavar="N", help="workers (as an engine would have)")
    group.addoption("--bench-budget", type=float, default=0.15, metavar="S", help="seconds for each kernel (0.15)")
    group.addoption("--bench-slowest", type=float, default=0.25, metavar="S", help="leave out slower calls (0.25)")
