"""Scalar tiles replace AMX on other CPUs: they compute its bytes and trap where it faults."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir

from infeng_core.kernels.libraries import library_states
from infeng_core.machine.cpu import detect
from infeng_core.plug.manager import Plugins

TESTS = Path(__file__).parents[1]
SOURCE = TESTS / "kernels" / "conformance" / "tiles.cc"
MISUSES = (
    "unconfigured",
    "released",
    "palette",
    "rows",
    "columns",
    "half-empty",
    "ninth-tile",
    "fourth-tile",
    "depth",
    "height",
    "width",
)
NEEDS = {"amx_int8", "avx512f", "avx512bw", "avx512vl", "avx512dq", "gfni"}

without_amx = pytest.mark.skipif(not detect().features >= NEEDS, reason="this CPU has no AMX, or may not use it")


def build(folder: Path, *flags: str) -> Path:
    program = folder / "tiles"
    command = ["c++", "-std=c++20", "-O1", f"-I{include_dir()}", *CFLAGS, *flags, str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiles"))


@pytest.mark.parametrize("misuse", MISUSES)
def test_scalar_tiles_trap_where_the_hardware_faults(loops: Path, misuse: str) -> None:
    done = subprocess.run([loops, misuse], check=False, capture_output=True, text=True)
    assert done.returncode in (-signal.SIGILL, -signal.SIGTRAP), done.stdout


def test_scalar_tiles_accept_valid_use(loops: Path) -> None:
    assert subprocess.run([loops, "nothing wrong"], check=False, capture_output=True).returncode == 0


@without_amx
def test_scalar_tiles_equal_the_hardware_byte_for_byte(tmp_path: Path) -> None:
    flags = ["-DHARDWARE", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mgfni"]
    assert subprocess.run([build(tmp_path, *flags), "compare"], check=False).returncode == 0


SCRIPT = """
import sys
from threading import Thread
from infeng_core import _native as native
library = native.open_library(sys.argv[1])
from kernels.harness import find_kernel, reference
from infeng_kit.cases import case as case_of
case = case_of("bias", "linear", 40, weight="int4-g64", act="int8-g64", n=96, k=192, epilogues=["bias"])
results = [case.run(find_kernel(reference(), case.problem))]
threads = [Thread(target=lambda: results.append(case.run(find_kernel(library, case.problem)))) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(results), len(set(results)))
"""


@without_amx
def test_opening_a_library_enables_tiles_in_all_threads_of_the_process() -> None:
    path = next((s.path for s in library_states(Plugins.discover()) if s.name == "amx"), None)
    if path is None:
        pytest.skip("infeng-amx is not installed")
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{SCRIPT}", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout == "3 1\n", done.stderr
