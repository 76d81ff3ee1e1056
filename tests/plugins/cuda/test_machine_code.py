"""The kernels compile for every generation of GPUs, without approximations, contractions, spills or local memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from plugins.cuda.workshop import PLUGIN

KERNELS = sorted(path.stem for path in (PLUGIN / "kernels").glob("*.cu"))
GENERATIONS = re.findall(r"'(\d+[af]?)'", (PLUGIN / "meson.options").read_text().split("'architectures'")[1])
EXACT = ("-std=c++20", "-O3", "-fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false")
FORBIDDEN = re.compile(r"\.approx|\.ftz|\bmad\.(rn\.)?f32|\b(add|mul|fma)\.f32\b|__nv_")
"""Arithmetic that is not rounded as the contract says: without a rounding of its own, ptxas may contract it."""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc, the compiler for GPUs")


def compiled(kernel: str, *options: str, out: Path) -> str:
    """Compile a source; return what the compiler reports."""
    command = ["nvcc", *EXACT, *options, "-o", str(out), str(PLUGIN / "kernels" / f"{kernel}.cu")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def check_report(report: str) -> None:
    assert set(re.findall(r"(\d+) bytes spill stores", report)) == {"0"}
    assert set(re.findall(r"(\d+) bytes stack frame", report)) == {"0"}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["norms", "rope"])
def test_arithmetic_is_as_it_is_written(kernel: str, tmp_path: Path) -> None:
    compiled(kernel, "-arch=compute_80", "-ptx", out=tmp_path / "code.ptx")
    assert FORBIDDEN.findall((tmp_path / "code.ptx").read_text()) == []
    check_report(compiled(kernel, "-arch=sm_90a", "-cubin", "-Xptxas=-v", out=tmp_path / "code.cubin"))


@needs_nvcc
@pytest.mark.nightly
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_for_every_generation(kernel: str, generation: str, tmp_path: Path) -> None:
    check_report(compiled(kernel, f"-arch=sm_{generation}", "-cubin", "-Xptxas=-v", out=tmp_path / "code.cubin"))


def test_generations_are_those_of_the_design() -> None:
    assert GENERATIONS == ["80", "86", "89", "90a", "100f", "120f"]
