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

from infeng_core.machine.cpu import detect

TESTS = Path(__file__).parents[1]
NO_AVX512 = "-avx512f,-amx_tile"

PROCESSORS = {
    "all that this one has": ("", ()),
    "AVX-512 with VNNI": ("-amx_tile,-gfni", ("avx512_vnni",)),
    "AVX-512": ("-amx_tile,-gfni,-avx512_vnni", ("avx512bw",)),
    "AVX2 and AVX-VNNI": (NO_AVX512, ("avx_vnni",)),
    "AVX2": (f"{NO_AVX512},-avx_vnni", ("avx2",)),
    "none of these": ("-avx", ()),
}
"""Processors by what is missing from this one, as INFENG_CPU_FEATURES says it, and what this one must have for that."""

UNITS = {
    "AVX-512 with VNNI": ("avx512", "vnni"),
    "AVX-512": ("avx512", "bw"),
    "AVX2 and AVX-VNNI": ("avx2", "vnni"),
    "AVX2": ("avx2", "maddubs"),
}
"""The library that runs everything there, and its unit for products of integers."""

SCRIPT = """
import json, sys
import infeng_demo
from e2e import harness
from infeng_core import SamplingParams
from infeng_core.requests.request import Request
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
    environment = {**os.environ, "INFENG_CACHE": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(TESTS)}
    found = {}
    for name, (mask, needs) in PROCESSORS.items():
        if not detect().features.issuperset(needs):
            continue
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


@pytest.mark.slow
def test_every_processor_computes_the_same_bytes(runs: dict[str, dict]) -> None:
    logits = [run["logits"] for run in runs.values()]
    assert len(logits) >= 2 and len(logits[0]) == 6
    assert all(other == logits[0] for other in logits)


@pytest.mark.parametrize("name", UNITS)
def test_one_library_runs_all_ops_with_the_best_unit_for_the_processor(name: str, runs: dict[str, dict]) -> None:
    if name not in runs:
        pytest.skip(f"this CPU lacks one of {', '.join(PROCESSORS[name][1])}")
    library, unit = UNITS[name]
    assert {kernel.partition("/")[0] for kernel in runs[name]["bound"]} == {library}
    assert {kernel.rpartition("_")[2] for kernel in runs[name]["bound"] if "linear_int" in kernel} == {unit}


def test_a_library_that_the_processor_cannot_run_is_not_even_mapped(runs: dict[str, dict]) -> None:
    for name, run in runs.items():
        mapped = {Path(path).name.removeprefix("libinfeng_").removesuffix(".so") for path in run["maps"]}
        if name == "none of these":
            assert mapped == {"reference"}
        elif name.startswith("AVX2"):
            assert mapped == {"avx2", "onednn", "reference"}
        elif name.startswith("AVX-512"):
            assert mapped == {"avx512", "avx2", "onednn", "reference"}


def test_libraries_with_the_widest_vectors_are_preferred(runs: dict[str, dict]) -> None:
    libraries = {kernel.partition("/")[0] for kernel in runs["all that this one has"]["bound"]}
    best = "avx512" if not harness.missing("avx512") else "avx2" if not harness.missing("avx2") else "reference"
    assert libraries == {best} | (set() if harness.missing("amx") else {"amx"})
