"""The native benchmark of linears with adapters: it builds behind its option, runs, and says what is wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import infeng_core

ROOT = Path(__file__).parents[2]
REFERENCE = Path(infeng_core.__file__).parent / "libinfeng_reference.so"
MESON = [sys.executable, "-m", "mesonbuild.mesonmain"]


def has_google_benchmark() -> bool:
    """Return whether a build would find Google Benchmark."""
    tool = shutil.which("pkg-config")
    return tool is not None and subprocess.run([tool, "--exists", "benchmark"], check=False).returncode == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, built."""
    if not has_google_benchmark():
        pytest.skip("Google Benchmark is not installed (libbenchmark-dev)")
    build = tmp_path_factory.mktemp("build")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja and pybind11-config of this place
    for command in (["setup", build, ROOT, "-Dbenchmarks=true"], ["compile", "-C", build, "bench_gemm_lora"]):
        subprocess.run([*MESON, *command], env={**os.environ, "PATH": tools}, check=True)
    return build / "tests" / "bench" / "native" / "bench_gemm_lora"


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_linears_are_measured_alone_fused_and_unfused(program: Path) -> None:
    options = ("--benchmark_min_time=0.001", "--benchmark_format=json")
    only = "--benchmark_filter=o_proj/rows:4/(base|(int8|bf16)/rank:16)"
    done = run(program, REFERENCE, only, *options)
    assert done.returncode == 0, done.stderr
    found = {line["name"].removesuffix("/real_time"): line for line in json.loads(done.stdout)["benchmarks"]}
    ways = [f"{storage}/rank:16/{way}" for storage in ("int8", "bf16") for way in ("fused", "unfused")]
    assert list(found) == [f"o_proj/rows:4/{name}" for name in ("base", *ways)]
    for name, line in found.items():
        assert "error_message" not in line
        seconds = line["real_time"] / 1e6
        assert line["GMAC/s"] == pytest.approx(4 * 2048 * 2048 / seconds / 1e9, rel=0.2)
        assert ("lora_tax" in line) == (not name.endswith("base"))


@pytest.mark.slow
def test_what_cannot_be_measured_is_said(program: Path, tmp_path: Path) -> None:
    done = run(program)
    assert (done.returncode, done.stderr[:6]) == (2, "usage:")
    text = tmp_path / "text.so"
    text.write_text("no library")
    done = run(program, text)
    assert done.returncode == 1
    assert done.stderr.startswith("bench_gemm_lora: ")
    assert str(text) in done.stderr
