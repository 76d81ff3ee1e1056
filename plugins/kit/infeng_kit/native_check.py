"""`infeng plugins check LIBRARY.so --native`: a kernel library against the reference in a program without Python.

The program is `driver/main.cc`. It hands kernels memory that ends exactly where arrays end, so that sanitizers and
debuggers see what a Python process hides, and it can be kept and run by itself.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infeng_abi import CFLAGS, include_dir

from infeng_core.api import Plugins, UsageError, load_config
from infeng_core.api.inspection import library_states
from infeng_core.api.kernels import REFERENCE, detect
from infeng_kit.building import SANITIZERS
from infeng_kit.report import UNEQUAL, Line, failed, ok, skipped

SOURCE = Path(__file__).parent / "driver" / "main.cc"
SECONDS = 3600
"""A run of all kernels of a library at most."""
MOST_BYTES = 4 << 20
"""Output of a run at most; a library that writes more is killed."""
OTHERWISE = "try it in `infeng plugins check` of its project, on a processor that has what it needs"
_COUNT = re.compile(r"(\S+) +(\d+) of (\d+) cases equal")
_SKIPPED = re.compile(r"(\S+) +skipped: (.+)")
_FAULT = re.compile(r"  (\S+): (.+)")


@dataclass(frozen=True)
class Run:
    """The words of one run of the driver."""

    driver: Path
    judge: Path
    library: Path
    features: str

    @property
    def words(self) -> list[str]:
        """The command line."""
        return [str(self.driver), str(self.judge), str(self.library), self.features]


def run_of(library: str, driver: Path, *, sanitized: bool) -> Run:
    """Compile the driver as ``driver`` for a library: a file, or the name of an installed one.

    Raises UsageError for a library that is not there and where no compiler is found or it fails.
    """
    states = library_states(Plugins.discover(load_config()))
    judge = next(state.path for state in states if state.name == REFERENCE)
    named = next((state.path for state in states if state.name == library), None)
    path = Path(library).resolve() if Path(library).is_file() else named
    if path is None:
        remedy = "give the file of a kernel library, or the name of an installed one"
        raise UsageError(library, "is no kernel library", remedy)
    compile_driver(driver, sanitized=sanitized)
    return Run(driver.resolve(), judge, path, ",".join(sorted(detect().features)))


def compile_driver(output: Path, *, sanitized: bool = False) -> None:
    """Compile the driver with $CXX or c++; raises UsageError."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler.split()[0]) is None:
        raise UsageError("--native", f"there is no {compiler}", "install a compiler for C++20, or name one: CXX=g++")
    more = ["-g", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all"] if sanitized else ["-g"]
    words = [*compiler.split(), "-std=c++20", "-O1", *more, f"-I{include_dir()}", *CFLAGS, str(SOURCE)]
    done = subprocess.run([*words, "-o", str(output), "-ldl", "-lm"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise UsageError("--native", f"the driver is not compiled: {said}", "use a compiler for C++20: CXX=g++")


def lines(run: Run) -> Iterator[Line]:
    """Run the driver and yield an outcome for each kernel, and one for a run that ended before the last."""
    try:
        status, output, errors = _driven(run)
    except subprocess.TimeoutExpired:
        yield failed("driver", f"it has not ended within {SECONDS} s", _by_hand(run))
        return
    faults: list[str] = []
    for line in output:
        if found := _FAULT.fullmatch(line):
            faults.append(found[2])
        elif found := _SKIPPED.fullmatch(line):
            yield skipped(f"kernel {found[1]}", found[2], OTHERWISE)
        elif found := _COUNT.fullmatch(line):
            yield _of_kernel(found[1], int(found[2]), int(found[3]), faults)
            faults = []
    if status not in (0, 1):
        yield failed("driver", _end(status, errors), _by_hand(run))


def _driven(run: Run) -> tuple[int, list[str], list[str]]:
    """Return the driver's status and the lines of its output and of its errors."""
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(run.words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environ)
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
        try:
            status = child.wait(SECONDS)
        finally:
            child.kill()
            child.wait()
        return status, _lines_of(output), _lines_of(errors)


def _lines_of(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read(MOST_BYTES).decode("utf-8", errors="replace").splitlines()


def _of_kernel(name: str, equal: int, cases: int, faults: list[str]) -> Line:
    part = f"kernel {name}"
    if not cases:
        return failed(part, "it accepts no case of its op", "look at accepts, fuses and handles")
    if equal < cases:
        return failed(part, f"{cases - equal} of {cases} cases differ; {faults[0] if faults else ''}", UNEQUAL)
    return ok(part, f"equals the reference byte for byte in {cases} cases, in memory that ends where arrays end")


def _end(status: int, errors: list[str]) -> str:
    said = [line for line in errors if line.strip()]
    telling = next((line for line in said if "ERROR: " in line or "runtime error" in line), said[-1] if said else "")
    if status < 0:
        return f"it ended by {signal.Signals(-status).name} {telling}".rstrip()
    return telling or f"it ended with status {status}"


def _by_hand(run: Run) -> str:
    return f"run it in a debugger, after --driver FILE has kept it: FILE {' '.join(run.words[1:3])} FEATURES"
