"""Released headers stay as they are, the header of today has grown from them by the rules, and old binaries run."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import numpy as np
import pytest
from kernels import abi_mirror as mirror
from kernels.harness import OneOp, random_rows, reference

from infeng_core import _native as native
from infeng_core.formats.quant import LibraryFormat, MatrixContext

from . import growth
from .test_time_travel import RELEASED, speaks

HEADER = infeng_abi.include_dir() / "infeng" / "abi.h"
SPOKEN = [include for include in RELEASED if speaks(include)]
BINARIES = sorted(path for include in SPOKEN for path in include.glob("plugins/lib*.so"))
MAJOR, MINOR = native.ABI_VERSION
only_here = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kept libraries are for x86-64")


def copied(header: Path, folder: Path) -> growth.Header:
    """Read a header from a folder in which programs may be compiled."""
    folder.mkdir()
    return growth.read(Path(shutil.copy(header, folder)))


@pytest.mark.parametrize("include", SPOKEN, ids=lambda path: path.name)
def test_the_header_has_grown_from_each_that_it_speaks_by_the_rules(include: Path, tmp_path: Path) -> None:
    old = copied(include / "infeng" / "abi.h", tmp_path / "old")
    assert {name for name in old.fields if not growth.may_grow(name, old.fields[name])} == growth.FIXED
    assert growth.violations(old, copied(HEADER, tmp_path / "new")) == []


def test_the_newest_release_of_this_minor_is_the_header_itself() -> None:
    released = HEADER.parents[0]
    kept = Path(__file__).parents[2] / "abi" / "released" / f"{MAJOR}.{MINOR}" / "infeng"
    for name in ("abi.h", "layout_check.c"):
        assert (kept / name).read_bytes() == (released / name).read_bytes(), f"{name} changed: it is a new minor"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  int64_t k;\n  int64_t panels;\n", "  int64_t panels;\n  int64_t k;\n", "first fields of infeng_weight"),
        ("  uint64_t layout;\n", "", "first fields of infeng_weight"),
        ("  int64_t per_worker;", "  int32_t per_worker;", "first fields of infeng_workspace"),
        ("  void* instance;", "  void* instance;\n  void* more;", "infeng_args grew"),
        (
            "  const void* data;\n  int64_t bytes;\n",
            "  const void* data;\n  int64_t bytes;\n  int64_t x;\n",
            "range grew",
        ),
        ("INFENG_OP_ROPE = 5,", "INFENG_OP_ROPE = 15,", "INFENG_OP_ROPE was 5, is 15"),
        ("INFENG_OP_COUNT = 12,", "INFENG_OP_COUNT = 12,\n  INFENG_OP_MORE = 5,", "INFENG_OP_MORE has the number of"),
        ("INFENG_ACT_F32 = 1,", "INFENG_ACT_FLOAT = 1,", "INFENG_ACT_F32 is gone"),
        ("#define INFENG_MAX_DIMS 4", "#define INFENG_MAX_DIMS 5", "INFENG_MAX_DIMS was 4, is 5"),
        ("int64_t index, infeng_worker* worker);", "int32_t index, infeng_worker* worker);", "infeng_part was"),
        ("#define INFENG_ABI_SINCE 11", "#define INFENG_ABI_SINCE 12", "INFENG_ABI_SINCE was 11, is 12"),
        ("#define INFENG_ABI_MINOR 11", "#define INFENG_ABI_MINOR 10", "INFENG_ABI_MINOR shrank"),
    ],
)
def test_a_change_that_breaks_old_libraries_is_found(
    fabricate: Callable[..., Path], tmp_path: Path, old: str, new: str, said: str
) -> None:
    changed = growth.read(fabricate((old, new)) / "infeng" / "abi.h")
    found = growth.violations(copied(HEADER, tmp_path / "old"), changed)
    assert any(said in text for text in found), found


def test_the_next_minor_may_append(fabricate: Callable[..., Path], tmp_path: Path) -> None:
    include = fabricate(
        (f"#define INFENG_ABI_MINOR {MINOR}", f"#define INFENG_ABI_MINOR {MINOR + 1}"),
        ("INFENG_OP_COUNT = 12,", "INFENG_OP_SCAN = 12,\n  INFENG_OP_COUNT = 13,"),
        ("  uint32_t reserved;\n} infeng_kernel;", "  uint32_t reserved;\n  void (*warm)(void);\n} infeng_kernel;"),
        ("} infeng_format;", "  int32_t flavour;\n} infeng_format;"),
        ("} infeng_block;", "  int16_t more[4][16];\n} infeng_block;"),
        ("} infeng_lora_segment;", "  float more;\n} infeng_lora_segment;"),
        ("} infeng_linear_args;", "  infeng_tensor more;\n} infeng_linear_args;"),
    )
    assert growth.violations(copied(HEADER, tmp_path / "old"), growth.read(include / "infeng" / "abi.h")) == []


# ------------------------------------------------------------------------------------------------- kept binaries ---


@pytest.mark.parametrize("include", SPOKEN, ids=lambda path: path.name)
def test_kept_libraries_are_the_bytes_that_were_released(include: Path) -> None:
    lines = (include / "plugins" / "SHA256SUMS").read_text().split("\n")[:-1]
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    kept = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in include.glob("plugins/lib*.so")}
    assert kept == listed
    assert len(kept) >= 3
    assert sum(path.stat().st_size for path in include.glob("plugins/lib*.so")) < 100_000


@only_here
@pytest.mark.parametrize("path", BINARIES, ids=lambda path: f"{path.parts[-3]}/{path.stem}")
@pytest.mark.parametrize(
    ("major", "minor", "status"), [(0, 11, 0), (0, 12, 0), (0, 99, 0), (0, 10, 3), (1, 0, 3), (1, 11, 3), (2, 0, 3)]
)
def test_kept_libraries_answer_hosts_of_other_versions(path: Path, major: int, minor: int, status: int) -> None:
    host = mirror.Host(ctypes.sizeof(mirror.Host), major, minor, None, b"another", b"")
    room = (ctypes.c_char * (ctypes.sizeof(mirror.LibraryDesc) + 64))()
    description = mirror.LibraryDesc.from_buffer(room)
    description.struct_size = len(room)
    assert ctypes.CDLL(str(path)).infeng_library(ctypes.byref(host), ctypes.byref(description)) == status
    assert (description.abi_major, description.abi_minor) == (0, 11)
    assert bool(description.name) == (status == 0)


def kept(version: str, name: str) -> native.Library:
    return native.open_library(str(Path(__file__).parents[2] / "abi" / "released" / version / "plugins" / name))


@only_here
def test_kept_kernels_of_0_11_run() -> None:
    path = Path(kept("0.11", "libplain.so").path)
    library = native.open_library(str(path))
    assert (library.abi, [kernel.name for kernel in library.kernels]) == ((0, 11), ["triple", "norm_plain"])
    x = random_rows(1, 5, 96)
    op = OneOp(5, threads=2)
    out = op.output(96)
    op.program.epilogue(op.bind(library.kernels[0]), op.input(x), 96, out, [])
    op.run()
    assert np.array_equal(op.result(out), 3 * x)
    w = np.linspace(0.5, 2, 96, dtype=np.float32)
    op = OneOp(5, threads=2)
    out = op.output(96)
    op.program.rmsnorm(op.bind(library.kernels[1]), op.input(x), w, 1e-5, out, [])
    op.run()
    exact = x.astype(np.float64)
    exact = exact / np.sqrt(np.square(exact).mean(axis=1, keepdims=True) + 1e-5) * w
    assert np.allclose(op.result(out), exact, rtol=1e-5, atol=1e-6)


@only_here
def test_a_kept_format_and_op_of_0_11_run() -> None:
    library = kept("0.11", "libbrought.so")
    assert (library.formats, library.ops) == (["retained-g16"], ["retained_shift"])
    form, w = LibraryFormat("retained-g16", "int8-g64"), random_rows(2, 20, 100)
    panels = np.zeros(2 * form.panel_bytes(100), np.uint8)
    form.pack(w, panels, context=MatrixContext("layers.7.o_proj"))
    place = np.arange(100)
    expected = (place % 64).astype(np.float32) * w[:, place // 16 * 16] - np.float32(7)
    assert np.array_equal(form.unpack(panels, 0, 2, 100)[:20], expected)
    x, y = random_rows(3, 4, 64), np.arange(64, dtype=np.float32)
    op = OneOp(4)
    out, rows = op.output(64), op.input(x)
    given = {"x": rows, "y": y, "factor": 0.5}
    op.program.row_op("retained_shift", op.bind(library.kernels[0]), 64, out, operands=given)
    op.run()
    assert np.array_equal(op.result(out), x + np.float32(0.5) * y)


@only_here
def test_kept_exact_kernels_of_0_11_give_the_bytes_of_the_reference() -> None:
    library = kept("0.11", "libsdk.so")
    assert [(kernel.name, kernel.numerics) for kernel in library.kernels] == [
        ("rope_sdk", "exact"),
        ("rmsnorm_sdk", "exact"),
    ]
    x, w = random_rows(4, 6, 172), random_rows(5, 1, 172)[0]
    made = []
    for kernel in (library.kernels[1], next(k for k in reference().kernels if k.op == "rmsnorm")):
        op = OneOp(6, threads=2)
        out = op.output(172)
        op.program.rmsnorm(op.bind(kernel), op.input(x), w, 1e-6, out, [])
        op.run()
        made.append(op.result(out).tobytes())
    assert made[0] == made[1]
