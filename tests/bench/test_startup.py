"""What a program waits for before anything happens, as processor time of a new process: importing and helping."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

STATEMENTS = {
    "engine": "import infeng_core.engine",
    "help": "import sys\nfrom infeng_core.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
}


def processor_time() -> float:
    """Return the seconds that processes started here have taken, of user and system together."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", STATEMENTS)
def test_start(benchmark: BenchmarkFixture, name: str) -> None:
    words = [sys.executable, "-P", "-c", STATEMENTS[name]]
    times: list[float] = []

    def start() -> None:
        before = processor_time()
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        times.append(processor_time() - before)

    benchmark.pedantic(start, rounds=10, warmup_rounds=1)
    benchmark.extra_info["processor_s"] = sorted(times)[len(times) // 2]
    benchmark.extra_info["least_processor_s"] = min(times)
