"""Kernel libraries compiled for these tests, and the parts most of them need."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import infeng_abi
import numpy as np
import pytest

import infeng_core
from infeng_core import _native

HERE = Path(__file__).parent
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles a source of this folder into a shared library and returns its path."""
    folder = tmp_path_factory.mktemp("libraries")

    def compile_library(source: str, *flags: str, compiler: str = "cc") -> Path:
        path = folder / ("_".join([Path(source).stem, *flags]).replace("-D", "").replace("/", "") + ".so")
        if not path.exists():
            command = [compiler, "-shared", "-fPIC", "-O1", f"-I{infeng_abi.include_dir()}", *infeng_abi.CFLAGS]
            subprocess.run([*command, *flags, "-o", path, HERE / source, "-pthread"], check=True)
        return path

    return compile_library


@pytest.fixture(scope="session")
def toy(build: Build) -> dict[str, _native.Kernel]:
    """Return the kernels of toy.c by name."""
    return {kernel.name: kernel for kernel in _native.open_library(str(build("toy.c"))).kernels}


@pytest.fixture(scope="session")
def reference() -> dict[str, _native.Kernel]:
    """Return the reference kernels by name."""
    path = Path(infeng_core.__file__).parent / "libinfeng_reference.so"
    return {kernel.name: kernel for kernel in _native.open_library(str(path)).kernels}


@pytest.fixture(scope="session")
def expect() -> Callable[..., Any]:
    """Return a context manager that wants a NativeError with a code, and a text if one is given."""

    @contextmanager
    def wanted(code: str, text: str = "") -> Iterator[pytest.ExceptionInfo[_native.NativeError]]:
        with pytest.raises(_native.NativeError) as caught:
            yield caught
        assert (caught.value.code, text in str(caught.value)) == (code, True), str(caught.value)

    return wanted


class Steps:
    """A program of toy kernels in a row, each reading one buffer and writing the next."""

    def __init__(self, pool: _native.Pool, *kernels: _native.Kernel, rows: int = 64, columns: int = 4096) -> None:
        # So many columns that no kernel is small enough for one worker alone.
        self.rows = rows
        self.program = _native.Program(pool, max_rows=rows, max_samples=rows, max_segments=rows, context=4096)
        self.buffers = [self.program.buffer(columns) for _ in range(len(kernels) + 1)]
        for index, kernel in enumerate(kernels):
            self.program.epilogue([(rows, kernel)], self.buffers[index], columns, self.buffers[index + 1], [])
        self.program.finish()

    def run(self, rows: int | None = None) -> np.ndarray:
        """Run on ``rows`` rows and return the last buffer."""
        count = self.rows if rows is None else rows
        none = np.zeros(0, np.int32)
        self.program.run(
            np.zeros(count, np.int32), np.arange(count, dtype=np.int32), np.zeros((0, 4), np.int32), none, none
        )
        return self.program.view(self.buffers[-1])[:count]


@pytest.fixture(scope="session")
def steps() -> type[Steps]:
    """Return the class of small programs."""
    return Steps
