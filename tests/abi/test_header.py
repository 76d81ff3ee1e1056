"""The header stands alone, in C and C++, and its layout is frozen."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import pytest

HEADER = infeng_abi.include_dir() / "infeng" / "abi.h"
LAYOUT = HEADER.with_name("layout_check.c")
COMPILERS = {
    "c11": ["cc", "-std=c11", "-xc"],
    "c++20": ["c++", "-std=c++20", "-xc++"],
    "clang c11": ["clang", "-std=c11", "-xc"],
    "clang c++20": ["clang++", "-std=c++20", "-xc++"],
}


def compiled(source: str | Path, *flags: str, language: str = "c11") -> subprocess.CompletedProcess[str]:
    command = [*COMPILERS[language], "-Wall", "-Wextra", "-pedantic", "-Werror", "-c", "-o", os.devnull]
    text = source if isinstance(source, str) else source.read_text()
    return subprocess.run(
        [*command, f"-I{infeng_abi.include_dir()}", *flags, "-"], input=text, capture_output=True, text=True
    )


@pytest.mark.parametrize("language", COMPILERS)
def test_header_and_layout_compile_without_a_warning(language: str) -> None:
    if not shutil.which(COMPILERS[language][0]):
        pytest.skip(f"{COMPILERS[language][0]} is not installed")
    for source in ("#include <infeng/abi.h>\nint main(void) { return 0; }\n", LAYOUT):
        result = compiled(source, language=language)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  uint64_t layout;\n", ""),
        ("  int64_t per_worker;", "  int32_t per_worker;"),
        ("  int64_t rows_min;\n  int64_t rows_max;\n", "  int64_t rows_max;\n  int64_t rows_min;\n"),
        ("INFENG_OP_ROPE = 5", "INFENG_OP_ROPE = 15"),
        ("  float offset;", "  float eps2;\n  float offset;"),
        ("INFENG_NEED_SINKS = 2", "INFENG_NEED_SINKS = 3"),
        ("#define INFENG_MAX_DIMS 4", "#define INFENG_MAX_DIMS 5"),
    ],
)
def test_layout_check_fails_when_an_offset_size_or_number_changes(
    fabricate: Callable[..., Path], old: str, new: str
) -> None:
    folder = fabricate((old, new))
    command = ["cc", "-std=c11", f"-I{folder}", "-c", "-o", os.devnull, LAYOUT]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode != 0
    assert "static assertion failed" in result.stderr


def test_every_field_and_number_of_the_header_is_frozen() -> None:
    checks = LAYOUT.read_text()
    for struct in HEADER.read_text().split("typedef struct ")[1:]:
        name, body = struct.split(" {", 1)
        fields = [line for line in body.split("}")[0].splitlines() if ";" in line.split("/*")[0]]
        assert f"SIZE({name}," in checks
        assert checks.count(f"AT({name},") == len(fields), name
    for line in HEADER.read_text().splitlines():
        if line.startswith("  INFENG_") and " = " in line:
            name = line.split()[0]
            assert name == "INFENG_OP_COUNT" or f"IS({name}," in checks, name


def test_header_is_short_and_includes_no_other_header_of_the_project() -> None:
    lines = HEADER.read_text().splitlines()
    assert len(lines) < 750
    assert [line for line in lines if line.startswith("#include")] == ["#include <stddef.h>", "#include <stdint.h>"]


def test_a_build_with_fast_math_is_refused() -> None:
    result = compiled("#include <infeng/abi.h>\n", "-ffast-math")
    assert result.returncode != 0
    assert "build without -ffast-math" in result.stderr
