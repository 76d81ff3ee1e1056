"""The AArch64 kernels, cross-compiled: their bytes under qemu equal the reference's, and their loops are products.

Two sources stand for all in the slow suite; `make neon` compares the whole library at night.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from kernels.driver import MAIN, ROOT

PREFIX, QEMU = "aarch64-linux-gnu-", "qemu-aarch64-static"
PLUGIN = ROOT / "plugins" / "neon"
UNITS = {
    "dotprod": ("neoverse-n1", ""),
    "i8mm": ("max", "i8mm"),
}  # an emulated CPU and its features beyond the library's
PRODUCT = re.compile(r"(s|u|us|su)dot|u?smmla|usmmla")
ON_STACK = re.compile(r"(str|stp|ldr|ldp)\s+q\d+.*\[sp")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(f"{PREFIX}g++") and shutil.which(QEMU)),
        reason="needs packages: g++-aarch64-linux-gnu qemu-user-static",
    ),
]


def call(*words: str | Path) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Workshop:
    """A folder in which sources of the plugin are compiled with the plugin's own flags."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cross = f"--cross-file={PLUGIN / 'aarch64.ini'}"
        call(
            sys.executable,
            "-m",
            "mesonbuild.mesonmain",
            "setup",
            folder / "build",
            PLUGIN,
            cross,
            "-Dbuildtype=release",
        )
        flags = [f"-I{include_dir()}", *CFLAGS, "-fPIC"]
        reference = sorted((ROOT / "infeng_core" / "reference").glob("*.c"))
        version = '-DINFENG_REFERENCE_VERSION="0"'
        self.judge, self.driver = folder / "libinfeng_reference.so", folder / "conformance"
        call(f"{PREFIX}gcc", "-std=c11", "-O2", "-shared", version, *flags, *reference, "-lm", "-o", self.judge)
        call(f"{PREFIX}g++", "-std=c++20", "-O1", *flags, MAIN, "-ldl", "-o", self.driver)
        self.compiled = cache(self._compiled)

    def _compiled(self, source: str, unit: str) -> Path:
        path = self.folder / "build" / f"lib{unit}.a.p" / f"{source}.cc.o"
        call("ninja", "-C", self.folder / "build", path.relative_to(self.folder / "build"))
        return path

    def library_of(self, source: str, unit: str) -> tuple[Path, list[str]]:
        """Return a library of the kernels in one source, and their names."""
        compiled = self.compiled(source, unit)
        symbols = call(f"{PREFIX}nm", compiled)
        names = [name for name in re.findall(r" [RDrd] (\w+)$", symbols, re.MULTILINE) if name.islower()]
        listed = " ".join(f"X({name})" for name in names)
        entry, library = self.folder / f"{source}_{unit}.cc", self.folder / f"lib{source}_{unit}.so"
        entry.write_text(
            f'#include <infeng/ops/library.h>\n#define KERNELS(X) {listed}\nINFENG_LIBRARY("neon", "0", KERNELS)\n'
        )
        flags = [f"-I{include_dir()}", *CFLAGS, "-fPIC", "-std=c++20"]
        call(f"{PREFIX}g++", "-shared", *flags, entry, compiled, "-o", library)
        return library, names


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("neon"))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("source", ["linear_int", pytest.param("linear_p32", marks=pytest.mark.nightly)])
def test_kernels_equal_the_reference(source: str, unit: str, workshop: Workshop) -> None:
    library, names = workshop.library_of(source, unit)
    assert names
    cpu, features = UNITS[unit]
    emulator = [QEMU, "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]
    output = call(*emulator, workshop.driver, workshop.judge, library, features, "0.02")
    counted = dict(re.findall(r"^(\w+) +(?:\d+) of (\d+) cases equal$", output, re.MULTILINE))
    assert counted.keys() == set(names)
    assert all(int(cases) >= 3 for cases in counted.values())


def functions(compiled: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the instructions of each function."""
    listing = call(f"{PREFIX}objdump", "-dC", "--no-show-raw-insn", compiled)
    for part in listing.split("\n\n"):
        header, *lines = part.strip().splitlines()
        if found := re.match(r"[0-9a-f]+ <(.+)>:", header):
            yield found[1], [line.split("\t", 1)[1] for line in lines if "\t" in line]


def spilled(code: list[str]) -> int:
    """Return the number of vectors that go to the stack or come from it between two products of one run."""
    at = [i for i, text in enumerate(code) if PRODUCT.match(text)]
    runs = [code[first:last] for first, last in pairwise(at) if last - first <= 12]
    return sum(bool(ON_STACK.match(text)) for run in runs for text in run)


@pytest.mark.nightly  # its source compiles for minutes
@pytest.mark.parametrize(("unit", "product"), [("dotprod", "sdot"), ("i8mm", "smmla")])
def test_blocks_of_rows_are_multiplied_by_vector_products_that_stay_in_registers(
    unit: str, product: str, workshop: Workshop
) -> None:
    blocks = [code for name, code in functions(workshop.compiled("linear_p32", unit)) if "::block<" in name]
    assert blocks
    for code in blocks:
        assert sum(text.startswith(product) for text in code) >= 32
        assert spilled(code) == 0


@pytest.mark.nightly
def test_all_cases_of_all_kernels_are_equal() -> None:
    words = ["make", "-s", "-C", str(ROOT), "neon"]
    last = call(*words).splitlines()[-1]
    assert re.fullmatch(r"\d{4,} cases equal", last), last
