"""The same bytes on older processors: this one with some of its features masked, from start to finish in a new process.

What is masked is never mapped, and a machine without AVX-512 needs no setting of any kind.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from e2e import harness

from infeng_core.plug.cpu import detect

TESTS = Path(__file__).parents[1]
WIDE = "-avx512f,-amx_tile"

PROCESSORS = {
    "all that this one has": "",
    "AVX2 and AVX-VNNI": WIDE,
    "AVX2": f"{WIDE},-avx_vnni",
    "none of these": "-avx",
}
"""Processors by what is missing from this one, as INFENG_CPU_FEATURES says it."""

SCRIPT = """
import json, sys
import infeng_demo
from e2e import harness
from infeng_core import SamplingParams
from infeng_core.request import Request
with harness.engine(infeng_demo.model_dir(), threads=2) as engine:
    recorder = harness.Recorder(engine)
    prompt = tuple(range(3, 260))
    engine.generate([Request(prompt, SamplingParams(temperature=0.9, seed=5, max_tokens=6, ignore_eos=True))])
    bound = sorted({f"{op.library}/{op.kernel}" for op in engine.executable.bound()})
maps = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libinfeng_" in line})
print(json.dumps({"logits": sorted(recorder.of(0).items()), "bound": bound, "maps": maps}))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What the engine did on each processor: its logits' checksums, the kernels bound, the libraries mapped."""
    if platform.machine() != "x86_64":
        pytest.skip("masks features of x86-64")
    if reason := harness.missing("avx2"):
        pytest.skip(reason)
    environment = {**os.environ, "INFENG_CACHE": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(TESTS)}
    found = {}
    for name, mask in PROCESSORS.items():
        done = subprocess.run(
            [sys.executable, "-P", "-c", SCRIPT],
            env=environment | {"INFENG_CPU_FEATURES": mask},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # falling back to what is there is no reason to complain
        found[name] = json.loads(done.stdout)
    return found


def mapped(run: dict) -> set[str]:
    return {Path(path).name.removeprefix("libinfeng_").removesuffix(".so") for path in run["maps"]}


def suffixes(run: dict) -> set[str]:
    """Units of the kernels that multiply integers."""
    return {kernel.rpartition("_")[2] for kernel in run["bound"] if "linear_int" in kernel}


def test_every_processor_computes_the_same_bytes(runs: dict[str, dict]) -> None:
    logits = [run["logits"] for run in runs.values()]
    assert len(logits[0]) == 6
    assert all(other == logits[0] for other in logits)


def test_without_avx512_the_avx2_library_runs_everything_unasked(runs: dict[str, dict]) -> None:
    for name in ("AVX2 and AVX-VNNI", "AVX2"):
        assert {kernel.partition("/")[0] for kernel in runs[name]["bound"]} == {"avx2"}
    assert suffixes(runs["AVX2"]) == {"maddubs"}
    assert suffixes(runs["AVX2 and AVX-VNNI"]) == {"vnni" if "avx_vnni" in detect({}).features else "maddubs"}


def test_a_library_that_the_processor_cannot_run_is_not_even_mapped(runs: dict[str, dict]) -> None:
    assert mapped(runs["AVX2"]) == mapped(runs["AVX2 and AVX-VNNI"]) == {"avx2", "reference"}
    assert mapped(runs["none of these"]) == {"reference"}


def test_the_widest_vectors_that_there_are_come_first(runs: dict[str, dict]) -> None:
    libraries = {kernel.partition("/")[0] for kernel in runs["all that this one has"]["bound"]}
    assert libraries <= {"amx", "avx512"} if not harness.missing("avx512") else libraries == {"avx2"}
