"""Compiles emulated libraries of one of infeng-cuda's kernels, perhaps with an edit, and compares them in a process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import infeng_abi

PLUGIN = Path(__file__).resolve().parents[3] / "plugins" / "cuda"
SAMPLE = Path(__file__).resolve().parents[2] / "device" / "sample.py"
EPILOGUE = ("kernels/epilogue.cu", "native/epilogue.cc")
SOURCES = {
    "rmsnorm": ("kernels/norms.cu", "native/norms.cc"),
    "rope": ("kernels/rope.cu", "native/rope.cc"),
    "epilogue": EPILOGUE,
    "linear_int4p32": (
        *("kernels/linear_few.cu", "kernels/linear_many.cu", "native/linear_int.cc", "native/product.cc"),
        *EPILOGUE,
    ),
    "attention_int8": ("kernels/attention.cu", "native/attention.cc"),
    "kv_append_int8": ("kernels/kv_append.cu", "native/kv_append.cc"),
    "combine": ("kernels/experts.cu", "native/experts.cc"),
}
"""Of each kernel, besides those that all have."""
COMMON = ("native/device.cc", "native/flatten.cc", "native/emulated.cc")
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")
LIBRARY = """
#include <infeng/ops/library.h>
#define ALL(X) X(cuda_{kernel})
INFENG_LIBRARY("x", "0", ALL)
"""


class Edit(NamedTuple):
    """An edit of a file; ``old`` occurs once."""

    file: str
    old: str
    new: str


def library(kernel: str, folder: Path, edit: Edit | None = None) -> Path:
    """Compile a library of one kernel in ``folder``, which does not exist yet."""
    shutil.copytree(PLUGIN, folder, ignore=shutil.ignore_patterns("build"))
    if edit is not None:
        text = (folder / edit.file).read_text()
        assert text.count(edit.old) == 1, f"{edit.file} has {text.count(edit.old)} places of {edit.old!r}"
        (folder / edit.file).write_text(text.replace(edit.old, edit.new))
    (folder / "one.cc").write_text(LIBRARY.replace("{kernel}", kernel))
    sources = [str(folder / source) for source in ("one.cc", *SOURCES[kernel], *COMMON)]
    made = folder / "library.so"
    command = ["g++", *FLAGS, f"-I{infeng_abi.include_dir()}", "-x", "c++", *sources, "-o", str(made)]
    subprocess.run(command, check=True)
    return made


def outcome(made: Path, cases: int = 40) -> str:
    """Return "" if the library's kernel equals the reference on some cases, or else what happened."""
    command = [sys.executable, "-P", str(SAMPLE), str(made), str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = done.stderr.strip().splitlines()[-1:] or ["it died"]
    return "" if done.returncode == 0 else last[0]
