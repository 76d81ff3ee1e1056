"""The SDK's helpers for C, by the kernels of docs/examples/kernel_linear: equal to the reference, any error is seen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from infeng_kit.conformance import different, suite
from kernels.driver import REFERENCE
from kit_parts import checked

from infeng_core import _native as native

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "kernel_linear"
HELPERS = include_dir() / "infeng" / "c"
SOURCES = ("library.c", "linear.c", "epilogue.c")
STRICT = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")


def built(folder: Path, file: str = "", old: str = "", new: str = "") -> native.Library:
    """Compile the example, after an edit of a helper, without warnings; return its library."""
    headers = Path(shutil.copytree(HELPERS, folder / "include" / "infeng" / "c"))
    if file:
        text = (headers / file).read_text()
        assert text.count(old) == 1, (old, text.count(old))
        (headers / file).write_text(text.replace(old, new))
    made = folder / "liblinear.so"
    include = [f"-I{folder / 'include'}", f"-I{include_dir()}"]
    sources = [str(EXAMPLE / name) for name in SOURCES]
    command = ["cc", *STRICT, "-O1", "-fPIC", "-shared", *include, *CFLAGS, *sources, "-lm", "-o", str(made)]
    subprocess.run(command, check=True)
    return native.open_library(str(made))


def faults(library: native.Library) -> dict[str, list[str]]:
    """Return where each kernel differs from the reference."""
    return {kernel.name: [*different(kernel, suite(kernel), lambda _: None)] for kernel in library.kernels}


def test_kernels_by_the_helpers_equal_the_reference_in_all_lists_functions_and_storages(tmp_path: Path) -> None:
    library = built(tmp_path)
    assert faults(library) == {"linear_f32_c": [], "linear_int8row_c": [], "epilogue_c": []}
    for kernel in library.kernels:
        judge = next(k for k in native.open_library(str(REFERENCE)).kernels if k.op == kernel.op)
        assert (set(kernel.fuses), set(kernel.handles)) == (set(judge.fuses), set(judge.handles))


WRONG = [
    ("functions.h", "8.3334519073e-3f", "8.3334500000e-3f"),
    ("functions.h", "if (x < -87.33f) return 0.0f;", ""),
    ("functions.h", "x / (1.0f + infeng_exp(-x))", "x * (1.0f / (1.0f + infeng_exp(-x)))"),
    ("functions.h", "return x < 0.0f ? -far : far;", "return far;"),
    ("functions.h", "0.127414796f", "0.127414f"),
    ("functions.h", "x * (x < 0.0f ? tail : 1.0f - tail)", "x * (1.0f - tail)"),
    ("functions.h", "fmaf(0.044715f * x, x * x, x)", "(0.044715f * x) * (x * x) + x"),
    ("functions.h", "x > 0.0f ? x * x : 0.0f", "x * x"),
    ("functions.h", "(up + 1.0f) * (gate *", "((up + 1.0f) * gate) * (1.0f *"),
    ("functions.h", "if (!(up > -limit)) up = -limit;", ""),
    ("quantize.h", "127.0f / amax", "1.0f / (amax / 127.0f)"),
    ("quantize.h", "sum += q[i];", "sum += q[i] != 127 ? q[i] : 126;"),
    ("quantize.h", "block == 256 ? 0.0625f : 0.125f", "0.25f"),
    ("quantize.h", "step < block; step *= 2", "step < block / 2; step *= 2"),
    ("quantize.h", "const int64_t wide = infeng_min(act->group,", "const int64_t wide = infeng_min(64,"),
    ("lora.h", "r % 8 == 0", "r % 16 == 0"),
    ("lora.h", "nibbles[n - 8] >> 4", "nibbles[n - 8] & 15"),
    ("lora.h", "fmaf(apart[n], infeng_f32_of_bf16(s->b_scale[first + n]), cur[n])",
     "cur[n] + apart[n] * infeng_f32_of_bf16(s->b_scale[first + n])"),
    ("lora.h", "p < s->panel_count; p++", "p + 1 < s->panel_count; p++"),
    ("lora.h", "row >= s->row_end", "row > s->row_end"),
    ("epilogue.h", "cur[2 * c + INFENG_C_LANES + n]", "cur[2 * c + n]"),
    ("epilogue.h", "infeng_apply(e->function, gate) * up", "infeng_apply(e->function, up) * gate"),
    ("epilogue.h", "cur[c] * infeng_apply(e->function, other[c])", "cur[c] * other[c]"),
    ("epilogue.h", "row, copy, k);", "row, copy, k - 1);"),
]  # fmt: skip
OFTEN = [1, 11, 16, 20]
"""Edits of each file that are tried in every run."""


@pytest.mark.parametrize("index", [pytest.param(i, marks=[] if i in OFTEN else pytest.mark.slow)
                                   for i in range(len(WRONG))])  # fmt: skip
def test_an_error_in_a_helper_is_seen_by_the_cases(index: int, tmp_path: Path) -> None:
    file, old, new = WRONG[index]
    assert any(faults(built(tmp_path, file, old, new)).values())


def test_the_helpers_compile_as_c_plus_plus_beside_the_loops_over_vectors(tmp_path: Path) -> None:
    names = ("c/epilogue", "ops/epilogue", "extension/clones")
    (tmp_path / "both.cc").write_text("".join(f"#include <infeng/{name}.h>\n" for name in names))
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{include_dir()}", *CFLAGS]
    subprocess.run(["c++", *flags, str(tmp_path / "both.cc")], check=True)


@pytest.mark.slow
def test_the_example_is_green_at_the_sizes_of_a_model_and_in_an_engine(tmp_path: Path) -> None:
    project = Path(shutil.copytree(EXAMPLE, tmp_path / "linear"))
    found = checked(project, cwd=tmp_path)
    assert (found.status, found.of("failed")) == (0, [])
    kernels = [line["text"] for line in found.of("ok") if line["part"].startswith("kernel ")]
    assert len(kernels) == 6
    assert any(line["part"] == "engine" for line in found.of("ok"))
