"""The C++ driver that compares a kernel library with the reference: how it is compiled and run."""

import os
import subprocess
from pathlib import Path

from infeng_abi import CFLAGS, include_dir

import infeng_core

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests" / "kernels" / "conformance"
MAIN = ROOT / "plugins" / "kit" / "infeng_kit" / "driver" / "main.cc"
REFERENCE = Path(infeng_core.__file__).parent / "libinfeng_reference.so"


def compile_to(output: Path, compiler: str, *arguments: str | Path) -> Path:
    flags = [f"-I{include_dir()}", *CFLAGS, "-fPIC", "-o", str(output)]
    subprocess.run([compiler, *map(str, arguments), *flags, "-ldl", "-lm"], check=True)
    return output


def run(driver: Path, *arguments: str | Path) -> str:
    """Run the driver, fail with its output if it finds a difference, and return that output."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(driver), *map(str, arguments)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
