"""`infeng plugins check LIBRARY.so --native`: a library without a wheel, compared in a program without Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from infeng_kit.native_check import SOURCE
from kernels.driver import REFERENCE
from kit_parts import checked, infeng

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "kernel"


def library(folder: Path, old: str = "", new: str = "", *more: str) -> Path:
    """Compile rmsnorm.c of the example, after an edit, into a library of one kernel."""
    source, entry = (EXAMPLE / "rmsnorm.c").read_text(), (EXAMPLE / "library.c").read_text()
    both = "  X(example_rmsnorm) \\\n  X(example_rope)"
    assert old in source and both in entry
    (folder / "rmsnorm.c").write_text(source.replace(old, new))
    (folder / "library.c").write_text(entry.replace(both, "  X(example_rmsnorm)"))
    made = folder / "libexample.so"
    flags = ["-std=c11", "-O2", "-fPIC", "-shared", f"-I{include_dir()}", *CFLAGS, *more]
    subprocess.run(["cc", *flags, "rmsnorm.c", "library.c", "-lm", "-o", str(made)], cwd=folder, check=True)
    return made


@pytest.mark.slow
def test_a_right_kernel_is_green_and_the_driver_runs_by_itself(tmp_path: Path) -> None:
    path, driver = library(tmp_path), tmp_path / "conformance"
    found = checked(str(path), "--native", "--driver", str(driver), cwd=tmp_path)
    assert found.status == 0
    [line] = found.lines
    assert line["part"] == "kernel rmsnorm_c" and "equals the reference byte for byte in" in line["text"]
    alone = subprocess.run([driver, REFERENCE, path], capture_output=True, text=True, check=True, env={})
    assert alone.stdout.startswith("rmsnorm_c ") and alone.stdout.endswith(" cases equal\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(x[i] * r) * weight[i]", "x[i] * (r * weight[i])", " cases differ; "),
        ("for (int64_t i = 0; i < k; i++) y[i] =", "y[k] = 0; for (int64_t i = 0; i < k; i++) y[i] =", "past the end"),
    ],
)
def test_a_wrong_kernel_is_named_with_its_case(old: str, new: str, words: str, tmp_path: Path) -> None:
    found = checked(str(library(tmp_path, old, new)), "--native", cwd=tmp_path)
    assert found.status == 1
    assert any(words in line["text"] for line in found.of("failed"))


@pytest.mark.nightly
def test_under_sanitizers_a_read_past_the_end_is_named(tmp_path: Path) -> None:
    wrong = (
        "for (int64_t i = 0; i < k; i++) y[i] =",
        "volatile float z = x[k]; (void)z; for (int64_t i = 0; i < k; i++) y[i] =",
    )
    path = library(tmp_path, *wrong, "-fsanitize=address", "-g")
    found = checked(str(path), "--native", "--sanitize", cwd=tmp_path)
    assert found.status == 1
    assert "heap-buffer-overflow" in found.of("failed")[-1]["text"]


def test_what_is_no_library_and_a_missing_compiler_are_named(tmp_path: Path) -> None:
    done = infeng("plugins", "check", "nobody", "--native", cwd=tmp_path)
    assert done.returncode == 2 and "nobody: is no kernel library" in done.stderr
    done = infeng("plugins", "check", "reference", "--native", cwd=tmp_path, CXX="no-such-compiler")
    assert done.returncode == 2 and "there is no no-such-compiler" in done.stderr
    (tmp_path / "x.so").touch()
    done = infeng("plugins", "check", "x.so", cwd=tmp_path)
    assert done.returncode == 2 and "only --native takes it" in done.stderr


def test_the_driver_comes_with_the_wheel() -> None:
    assert SOURCE.is_file() and (SOURCE.parent / "runner.h").is_file()
