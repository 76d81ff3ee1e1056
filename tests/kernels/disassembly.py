"""What a built kernel library can execute: its functions, who calls whom, and which CPU features they need.

The judge of "this instruction belongs to that feature" is the assembler: an instruction is assembled again with nothing
but the declared features enabled, so there is no table of mnemonics here that could be wrong or out of date.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from kernels.abi_mirror import open_kernels

from infeng_core.machine.cpu import NEEDS, closure

HEADER = re.compile(r"([0-9a-f]+) <(.+)>:")
INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(.+)")
TARGET = re.compile(r"\b([0-9a-f]+) <([^>]+)>")
GUARDED = re.compile(r"\.arch_|^get_available_features")
POINTERS = ("accepts", "workspace", "phases", "tiles", "run", "pack_size", "pack")


class Code:
    """A disassembled shared object. Functions are known by their address: names of unnamed namespaces repeat."""

    def __init__(self, path: Path) -> None:
        """Disassemble ``path`` with objdump."""
        command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.path = path
        self.names: dict[int, str] = {}
        self.instructions: dict[int, set[str]] = {}
        self._targets: dict[int, set[int]] = {}
        function = 0
        for line in listing.splitlines():
            if header := HEADER.match(line):
                function = int(header[1], 16)
                self.names[function] = header[2]
                self.instructions[function], self._targets[function] = set(), set()
            elif match := INSTRUCTION.match(line):
                self._add(function, match[2])
        self._starts = sorted(self.names)

    def _add(self, function: int, text: str) -> None:
        text, _, comment = text.partition("#")
        self._targets[function] |= {int(address, 16) for address, _ in TARGET.findall(text + comment)}
        if not TARGET.search(text):  # a direct branch is of any CPU, and its target means nothing elsewhere
            self.instructions[function].add(text.strip().removeprefix("data16 "))  # a prefix of padding

    def containing(self, address: int) -> int:
        """Return the function that an address lies in, or 0."""
        return max((start for start in self._starts if start <= address), default=0)

    def reachable(self, roots: Iterable[int]) -> set[int]:
        """Return the functions that calls, jumps and addresses taken in ``roots`` lead to, those included."""
        found: set[int] = set()
        pending = [self.containing(root) for root in roots]
        while pending:
            function = pending.pop()
            if function in self.names and function not in found:
                found.add(function)
                pending += {self.containing(target) for target in self._targets[function]}
        return found

    def address(self, name: str) -> int:
        """Return the address of the only function called ``name``."""
        (address,) = (address for address, other in self.names.items() if other == name)
        return address

    def beyond(self, functions: Iterable[int], features: Iterable[str]) -> list[str]:
        """Return the instructions of ``functions`` that a CPU with no more than ``features`` does not have.

        Copies of a function among which a resolver chooses when the library is loaded (``target_clones``) are left out,
        but for the one that runs on every CPU, and so is the compiler's own question what the CPU can do.
        """
        functions = [function for function in functions if not GUARDED.search(self.names[function])]
        texts = sorted(set().union(*(self.instructions[function] for function in functions)))
        return [text for text, ok in zip(texts, assembles(texts, features), strict=True) if not ok]


def assembles(texts: list[str], features: Iterable[str]) -> list[bool]:
    """Return for each instruction whether it exists on an x86-64 CPU with no more than ``features``."""
    # endbr64 does nothing on a CPU that does not know it.
    architecture = [".arch generic64", ".arch .ibt", *(f".arch .{name}" for name in sorted(closure(features)))]
    source = "\n".join([*architecture, *texts]) + "\n"
    command = ["as", "-64", "-o", "/dev/null", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    wrong = {int(number) for number in re.findall(r"^\{standard input\}:(\d+): Error", done.stderr, re.MULTILINE)}
    unknown = [number for number in wrong if number <= len(architecture)]
    assert not unknown, f"the assembler does not know a feature: {done.stderr}"
    assert bool(wrong) == (done.returncode != 0), done.stderr
    return [number not in wrong for number in range(len(architecture) + 1, len(architecture) + 1 + len(texts))]


def entry_points(path: Path) -> dict[str, tuple[frozenset[str], list[int]]]:
    """Return each kernel's own features and the addresses of its functions in the file. Loads the library."""
    kernels = open_kernels(str(path))
    real = str(path.resolve())
    maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    base = min(int(fields[0].partition("-")[0], 16) for fields in maps if fields[-1] == real)
    result = {}
    for name, kernel in kernels.items():
        pointers = (ctypes.cast(getattr(kernel, field), ctypes.c_void_p).value for field in POINTERS)
        own = frozenset(filter(None, kernel.features.decode().split(",")))
        assert own <= NEEDS.keys()
        result[name] = own, [pointer - base for pointer in pointers if pointer]
    return result
