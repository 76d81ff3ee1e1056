"""The C++ conformance driver: exact ends of memory, sanitizers and scalar vectors, which programs cannot test."""

import subprocess
import sys
from pathlib import Path

import pytest
from infeng_abi import include_dir
from kernels.driver import MAIN, REFERENCE, ROOT, SOURCES, compile_to, run

from infeng_core import _native as native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins

CLOSE = {"onednn"}  # libraries whose results are only close to the reference
LIBRARIES = sorted({path.parent.name for path in (ROOT / "plugins").glob("*/library.cc")} - CLOSE)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def installed(name: str) -> Path:
    for library in libraries(Plugins.discover()):
        if library.name == name:
            return Path(library.path)
    pytest.skip(f"infeng-{name} is not installed, or this CPU cannot run it")


@pytest.mark.parametrize(
    "share", [pytest.param("0.1", marks=pytest.mark.slow), pytest.param("1", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", LIBRARIES)
def test_all_kernels_of_a_library_pass_in_the_driver(name: str, share: str, driver: Path) -> None:
    path = installed(name)
    output = run(driver, REFERENCE, path, ",".join(native.cpu_info().features), share)
    assert output.count("cases equal") + output.count("skipped") == len(native.open_library(str(path)).kernels)


@pytest.mark.slow
def test_kernels_in_c_by_the_sdk_s_helpers_pass_under_sanitizers(tmp_path: Path) -> None:
    """The driver has rows that are rotated in blocks of 256, and memory that ends where arrays end."""
    reference = sorted((ROOT / "infeng_core" / "reference").glob("*.c"))
    version = '-DINFENG_REFERENCE_VERSION="0"'
    judge = compile_to(tmp_path / "libreference.so", "cc", "-std=c11", "-O1", "-shared", version, *SANITIZE, *reference)
    example = sorted((ROOT / "docs" / "examples" / "kernel_linear").glob("*.c"))
    library = compile_to(tmp_path / "liblinear.so", "cc", "-std=c11", "-O1", "-shared", *SANITIZE, *example)
    checked = compile_to(tmp_path / "conformance", "c++", "-std=c++20", "-O1", *SANITIZE, MAIN)
    assert run(checked, judge, library, "", "0.1").count("cases equal") == 3


@pytest.mark.nightly  # the compiler takes seven minutes
def test_the_ops_over_scalar_vectors_equal_the_reference(driver: Path, tmp_path: Path) -> None:
    library = compile_to(
        tmp_path / "libscalar.so", "c++", "-std=c++20", "-O2", "-shared", SOURCES / "scalar_library.cc"
    )
    output = run(driver, REFERENCE, library, "", "0.1")
    assert output.count("cases equal") == len(native.open_library(str(library)).kernels)


@pytest.mark.nightly  # the compiler takes more than a minute
def test_the_driver_detects_one_wrong_lane(driver: Path, tmp_path: Path) -> None:
    broken = tmp_path / "include" / "infeng"
    for folder in ("ops", "simd"):
        for header in (include_dir() / "infeng" / folder).iterdir():
            (broken / folder).mkdir(parents=True, exist_ok=True)
            text = header.read_text()
            if header.name == "scalar.h":
                assert "half > 0; half /= 2" in text
                text = text.replace("half > 0; half /= 2", "half > 1; half /= 2")
            (broken / folder / header.name).write_text(text)
    library = compile_to(
        tmp_path / "libbroken.so",
        "c++",
        f"-I{tmp_path / 'include'}",
        "-std=c++20",
        "-O0",  # a minute less of compiler, and one kernel runs
        "-shared",
        SOURCES / "scalar_library.cc",
    )
    done = subprocess.run(
        [str(driver), str(REFERENCE), str(library), "", "1", "rmsnorm"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "differs" in done.stdout


@pytest.mark.nightly  # the compiler takes some ten minutes for a library with sanitizers
@pytest.mark.parametrize("name", LIBRARIES)
def test_no_kernel_reads_or_writes_out_of_bounds(name: str, tmp_path: Path) -> None:
    installed(name)
    reference = sorted((ROOT / "infeng_core" / "reference").glob("*.c"))
    version = '-DINFENG_REFERENCE_VERSION="0"'
    judge = compile_to(tmp_path / "libreference.so", "cc", "-std=c11", "-O1", "-shared", version, *SANITIZE, *reference)
    checked = compile_to(tmp_path / "conformance", "c++", "-std=c++20", "-O1", *SANITIZE, MAIN)
    build = tmp_path / "build"
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    options = ["-Db_sanitize=address,undefined", "-Db_lundef=false", "--buildtype=debugoptimized", "-Doptimization=1"]
    subprocess.run([*meson, "setup", str(build), str(ROOT / "plugins" / name), *options], check=True)
    subprocess.run([*meson, "compile", "-C", str(build)], check=True)
    run(checked, judge, build / f"libinfeng_{name}.so", ",".join(native.cpu_info().features), "0.1")
