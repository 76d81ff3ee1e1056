"""Compiles emulated libraries of a few of infeng-cuda's sources, perhaps with an edit, and compares them in a process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import infeng_abi

PLUGIN = Path(__file__).resolve().parents[3] / "plugins" / "cuda"
COMMON = ("native/flatten.cc", "native/emulated.cc")

JUDGE = """
import sys
from infeng_kit.cases import cases, reference
from infeng_core import _native as native
library = native.open_library(sys.argv[1], "")
for kernel in library.kernels:
    accepted = [case for case in cases(kernel.op) if kernel.accepts(case.problem)]
    for case in accepted[:: max(1, len(accepted) // int(sys.argv[2]))]:
        judge = next(k for k in reference().kernels if k.op == kernel.op and k.accepts(case.problem))
        if case.run(kernel) != case.run(judge):
            sys.exit(f"{kernel.name}: {case.name} differs")
"""


@dataclass(frozen=True)
class Part:
    """A kernel of the ABI's table, with the sources that it needs."""

    kernel: str
    sources: tuple[str, ...]


NORMS = Part("rmsnorm", ("kernels/norms.cu", "native/norms.cc"))
ROPE = Part("rope", ("kernels/rope.cu", "native/rope.cc"))
EPILOGUE = Part("epilogue", ("kernels/epilogue.cu", "native/epilogue.cc"))
_INT = ("native/linear_int.cc", "native/product.cc", *EPILOGUE.sources)
LINEAR = Part("linear_int4p32", ("kernels/linear_few.cu", "kernels/linear_many.cu", *_INT))
ATTENTION = Part("attention_int8", ("kernels/attention.cu", "native/attention.cc"))
APPEND = Part("kv_append_int8", ("kernels/kv_append.cu", "native/kv_append.cc"))
ROUTE = Part("route", ("kernels/experts.cu", "native/experts.cc"))
COMBINE = Part("combine", ROUTE.sources)


class Workshop:
    """A copy of the sources in ``folder``; objects of sources that no edit touches are compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def library(self, part: Part, name: str, edit: tuple[str, str, str] | None = None) -> Path:
        """Compile a library of one kernel; ``edit``: (file, old text, new text), old occurring once."""
        tree = self._folder / name
        shutil.copytree(PLUGIN, tree, ignore=shutil.ignore_patterns("build"))
        if edit is not None:
            path, old, new = tree / edit[0], edit[1], edit[2]
            text = path.read_text()
            assert text.count(old) == 1, f"{edit[0]} has {text.count(old)} places of {old!r}"
            path.write_text(text.replace(old, new))
        one = tree / "one.cc"
        one.write_text(f'#include <infeng/ops/library.h>\n#define ALL(X) X(cuda_{part.kernel})\nINFENG_LIBRARY("x", "0", ALL)\n')
        out = tree / "library.so"
        flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", f"-I{infeng_abi.include_dir()}"]
        sources = [str(tree / source) for source in (*part.sources, *COMMON)]
        subprocess.run(["g++", *flags, "-x", "c++", str(one), *sources, "-o", str(out)], check=True)
        return out


def outcome(library: Path, cases: int = 40) -> str:
    """Return "" if the kernel equals the reference on some cases, or else what happened."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", JUDGE, str(library), str(cases)], capture_output=True, text=True, timeout=300
    )
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it died"
