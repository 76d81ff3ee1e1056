"""Faults that were put into kernels for GPUs are found by comparing the emulated ones with the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.cuda.workshop import APPEND, ATTENTION, COMBINE, EPILOGUE, LINEAR, NORMS, ROPE, ROUTE, Part, Workshop, outcome

MUTANTS: dict[str, tuple[Part, tuple[str, str, str]]] = {
    "barrier of a norm": (NORMS, ("kernels/norms.cu", "\n    const float sum = sum_of(row, padded, [](float a, float s) { return fmaf(a, a, s); });", "\n    const float sum = sum_of(row, padded, [](float a, float s) { return a * a + s; });")),
    "rounding of a row": (NORMS, ("kernels/quantize.cuh", "float value = rintf(v[4 * half + i] * inverse);", "float value = floorf(v[4 * half + i] * inverse + 0.5f);")),
    "barrier before rounding": (NORMS, ("kernels/quantize.cuh", "  sync_block();  // all have read the values of an earlier call\n", "")),
    "contraction in rope": (ROPE, ("kernels/rope.cu", "write(i, fmaf(a, c[i], -bs));", "write(i, a * c[i] - bs);")),
    "order of steps": (EPILOGUE, ("kernels/steps.cuh", "for (int i = first; i < last; ++i) cur = apply(steps.list[i], row, column, cur);", "for (int i = last; i-- > first;) cur = apply(steps.list[i], row, column, cur);")),
    "second half of ln 2": (EPILOGUE, ("kernels/functions.cuh", "  r = fmaf(n, 0x1.05c610p-29f, r);\n", "")),
    "order of ranks": (EPILOGUE, ("kernels/epilogue.cu", "UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(x, weight.v[i], sum.v[i]);", "UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = x * weight.v[i] + sum.v[i];")),
    "turned fragment, few rows": (LINEAR, ("kernels/linear_few.cu", "w[j / 2][j % 2] = both.near;", "w[j % 2][j / 2] = both.near;")),
    "turned fragment, many rows": (LINEAR, ("kernels/linear_many.cu", "const unsigned a[4] = {w[o][0].w[i], w[o][1].w[i], w[o][0].w[i + 1], w[o][1].w[i + 1]};", "const unsigned a[4] = {w[o][0].w[i], w[o][0].w[i + 1], w[o][1].w[i], w[o][1].w[i + 1]};")),
    "race of stages": (LINEAR, ("kernels/linear_many.cu", "      wait_copies<0>();\n    sync_block();\n", "      wait_copies<0>();\n")),
    "share of a token": (ATTENTION, ("kernels/attention.cu", "cur = fmaf(parts[(first + i) * p.part_stride + th.own], w, cur);", "cur = parts[(first + i) * p.part_stride + th.own] * w + cur;")),
    "clamp of a key": (APPEND, ("kernels/cache_formats.cuh", "clamped(rintf(x * inverse), -127.0f, 127.0f)", "clamped(rintf(x * inverse), -127.0f, 126.0f)")),
    "order of experts": (COMBINE, ("kernels/experts.cu", "for (int i = 0; i < p.top_k; ++i) cur = fmaf(", "for (int i = p.top_k; i-- > 0;) cur = fmaf(")),
}  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("cuda"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_found(name: str, workshop: Workshop) -> None:
    part, edit = MUTANTS[name]
    assert outcome(workshop.library(part, name.replace(" ", "-"), edit)), "no case shows it"


@pytest.mark.slow
@pytest.mark.parametrize("part", [NORMS, ROUTE], ids=lambda part: part.kernel)
def test_sources_without_a_fault_equal_the_reference(part: Part, workshop: Workshop, tmp_path: Path) -> None:
    assert outcome(workshop.library(part, f"whole-{part.kernel}")) == ""
