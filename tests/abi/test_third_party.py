"""A stranger's build: flags from the installed wheel only, in a folder of its own, and the library runs."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import numpy as np
import pytest
from kernels.harness import OneOp

from infeng_core import _native as native


def run_triple(path: Path) -> None:
    """Assert that the library's kernel is bound and that it is what computed."""
    library = native.open_library(str(path))
    kernel = next(kernel for kernel in library.kernels if kernel.name == "triple")
    x = np.arange(150, dtype=np.float32).reshape(3, 50)
    op = OneOp(3, threads=2)
    out = op.output(50)
    op.program.epilogue(op.bind(kernel), op.input(x), 50, out, [])
    op.run()
    assert (library.name, kernel.numerics) == ("traveller", "approx")
    assert np.array_equal(op.result(out), 3 * x)


@pytest.mark.parametrize(("compiler", "language"), [("cc", "-std=c11"), ("c++", "-std=c++20")])
def test_flags_of_the_installed_wheel_build_a_library_that_loads(
    tell: Callable[[str], str], tmp_path: Path, compiler: str, language: str
) -> None:
    source = tmp_path / ("kernel.c" if compiler == "cc" else "kernel.cc")
    shutil.copy(Path(__file__).with_name("traveller.c"), source)
    flags = shlex.split(tell("--cflags"))
    assert flags == [f"-I{infeng_abi.include_dir()}", *infeng_abi.CFLAGS]
    command = [compiler, language, "-O2", "-fPIC", "-shared", *flags, source.name, "-o", "libstranger.so"]
    subprocess.run(command, check=True, cwd=tmp_path)
    run_triple(tmp_path / "libstranger.so")


def test_a_library_exports_its_entry_and_nothing_else(build: Callable[..., Path]) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", build(infeng_abi.include_dir())], check=True, capture_output=True, text=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["infeng_library"]


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="pkg-config is not installed")
def test_pkg_config_gives_the_same_flags_as_the_module(tell: Callable[[str], str]) -> None:
    environment = {**os.environ, "PKG_CONFIG_PATH": tell("--pkg-config-dir")}

    def ask(option: str) -> str:
        command = ["pkg-config", option, "infeng-abi"]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()

    assert ask("--modversion") == tell("--version") == infeng_abi.__version__
    include, *flags = shlex.split(ask("--cflags"))
    assert Path(include.removeprefix("-I")).resolve() == infeng_abi.include_dir().resolve()
    assert set(flags) == set(infeng_abi.CFLAGS)
    assert shlex.split(tell("--includes")) == [f"-I{infeng_abi.include_dir()}"]


def test_the_wheel_ships_the_sdk_headers() -> None:
    folder = infeng_abi.include_dir() / "infeng"
    for name in ("abi.h", "simd/vec.h", "simd/scalar.h", "ops/library.h", "ops/linear.h", "ops/rmsnorm.h"):
        assert (folder / name).is_file(), name
    version = "{}.{}".format(*native.ABI_VERSION)
    assert infeng_abi.__version__.startswith(version + ".")
