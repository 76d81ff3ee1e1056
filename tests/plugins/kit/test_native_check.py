"""`infeng plugins check LIBRARY.so --native`: a library without a wheel, compared in a program without Python."""

from __future__ import annotations

import re
import subprocess
import sysconfig
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from infeng_kit.native_check import SOURCE
from kernels.driver import REFERENCE
from kit_parts import checked, infeng

from infeng_core.machine.cpu import detect

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


def conformance(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command with an empty environment, in which nothing finds a Python."""
    program = Path(sysconfig.get_path("scripts")) / "infeng-conformance"
    return subprocess.run([program, *words], capture_output=True, text=True, env={}, cwd=cwd, check=False)


def test_the_installed_command_compares_a_library_without_python(tmp_path: Path) -> None:
    library(tmp_path)
    done = conformance("libexample.so", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"rmsnorm_c +(\d+) of \1 cases equal\n", done.stdout)
    named = conformance(tmp_path / "libexample.so", "--share", "0.1", "--reference", REFERENCE, cwd=tmp_path)
    assert (named.returncode, named.stderr) == (0, "")
    program = (Path(sysconfig.get_path("scripts")) / "infeng-conformance").read_bytes()
    assert program.startswith(b"\x7fELF") and b"libpython" not in program


def test_the_installed_command_has_status_1_where_a_kernel_differs_or_none_is_compared(tmp_path: Path) -> None:
    wrong = library(tmp_path, "(x[i] * r) * weight[i]", "x[i] * (r * weight[i])")
    done = conformance(wrong, cwd=tmp_path)
    assert done.returncode == 1 and "  rmsnorm_c: " in done.stdout
    done = conformance(wrong, "--kernel", "rope", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "infeng-conformance: no kernel was compared\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: infeng-conformance LIBRARY.so"),
        (("a.so", "b.so"), "b.so: it is unknown, or one library too many"),
        (("--shares", "1"), "--shares: it is unknown"),
        (("a.so", "--share"), "--share: its value is missing"),
        (("a.so", "--share", "many"), "--share many: it is no number from 0 to 1"),
        (("a.so", "--share", "nan"), "--share nan: it is no number from 0 to 1"),
        (("missing.so",), "missing.so: cannot open shared object file"),
        (("libm.so.6",), "./libm.so.6: cannot open shared object file"),
    ],
)
def test_the_installed_command_explains_wrong_words(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = conformance(*words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr


def test_the_installed_command_knows_the_features_that_the_engine_knows(tmp_path: Path) -> None:
    """Kernels that need a feature of this processor are compared, others are skipped."""
    features = sorted(detect({}).features)
    for name in [*features, "no_such_feature"]:
        path = library(tmp_path, '.features = ""', f'.features = "{name}"')
        done = conformance(path, "--share", "0", cwd=tmp_path)
        assert ("skipped" in done.stdout) == (name not in features), name


def test_the_driver_comes_with_the_wheel() -> None:
    assert SOURCE.is_file() and (SOURCE.parent / "runner.h").is_file()
