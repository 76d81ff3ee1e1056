"""Libraries of other times: older minors always load, newer ones negotiate down or are refused, majors never mix."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import pytest
from kernels import abi_mirror as mirror

import infeng_core
from infeng_core import _native as native

from .test_third_party import run_triple

Build = Callable[..., Path]
MAJOR, MINOR = native.ABI_VERSION
RELEASED = sorted((Path(__file__).parents[2] / "abi" / "released").glob("*"))

OLDER = (  # a minor before this one, in which some structs were shorter
    (f"#define INFENG_ABI_MINOR {MINOR}", f"#define INFENG_ABI_MINOR {MINOR - 1}"),
    ("  int64_t (*pack_size)(const infeng_weight* weight, uint64_t* layout);\n", ""),
    (
        "  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);\n",
        "",
    ),
    ("  infeng_status (*thread_enter)(void);\n  void (*thread_exit)(void);\n  void (*shutdown)(void);\n", ""),
    ("  float scale;             /* 1/sqrt(head_dim), from the host */\n", ""),
)
NEWER = (  # the next minor: a new op and new fields at the ends of structs
    (f"#define INFENG_ABI_MINOR {MINOR}", f"#define INFENG_ABI_MINOR {MINOR + 1}"),
    ("  int32_t workers;\n", "  int32_t workers;\n  int64_t future;\n"),
    ("  void (*shutdown)(void);\n", "  void (*shutdown)(void);\n  uint64_t flavour;\n"),
    (
        "  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);\n",
        "  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);\n"
        "  void (*warm)(void);\n",
    ),
)
NEXT_MAJOR = (
    (f"#define INFENG_ABI_MAJOR {MAJOR}", f"#define INFENG_ABI_MAJOR {MAJOR + 1}"),
    (f"#define INFENG_ABI_MINOR {MINOR}", "#define INFENG_ABI_MINOR 0"),
)


def refused(path: Path, code: str, text: str) -> None:
    with pytest.raises(native.NativeError) as caught:
        native.open_library(str(path))
    assert (caught.value.code, text in str(caught.value)) == (code, True), str(caught.value)


@pytest.mark.parametrize("include", [infeng_abi.include_dir(), *RELEASED], ids=lambda path: path.name)
def test_a_library_of_this_and_of_every_released_header_loads_and_runs(build: Build, include: Path) -> None:
    run_triple(build(include))


def test_an_older_minor_with_shorter_structs_loads_and_nothing_behind_them_is_read(
    build: Build, fabricate: Build
) -> None:
    path = build(fabricate(*OLDER), "-DAT_PAGE_END")
    assert native.open_library(str(path)).abi == (MAJOR, MINOR - 1)
    run_triple(path)


def test_a_newer_minor_that_negotiates_down_loads_without_what_this_core_does_not_know(
    build: Build, fabricate: Build
) -> None:
    path = build(fabricate(*NEWER), "-DNEGOTIATES")
    library = native.open_library(str(path))
    assert library.abi == (MAJOR, MINOR)
    assert [kernel.name for kernel in library.kernels] == ["triple"]
    run_triple(path)


def test_a_newer_minor_that_does_not_negotiate_is_refused_with_both_versions(build: Build, fabricate: Build) -> None:
    path = build(fabricate(*NEWER))
    refused(path, "abi_minor", f"speaks kernel ABI {MAJOR}.{MINOR + 1}, this core speaks {MAJOR}.{MINOR}")


def test_another_major_is_refused_before_anything_else_is_read(build: Build, fabricate: Build) -> None:
    path = build(fabricate(*NEXT_MAJOR), "-DNEGOTIATES")
    refused(path, "abi_major", f"speaks kernel ABI {MAJOR + 1}.0, this core speaks {MAJOR}.{MINOR}")


def test_unknown_extensions_are_skipped_and_a_circle_of_them_is_refused(build: Build, fabricate: Build) -> None:
    include = fabricate(*NEWER)
    run_triple(build(include, "-DNEGOTIATES"))
    refused(build(include, "-DNEGOTIATES", "-DCYCLIC"), "bad_extension", "runs in a circle")


@pytest.mark.parametrize(
    ("major", "minor", "status"),
    [(MAJOR, MINOR, 0), (MAJOR, MINOR + 7, 0), (MAJOR, MINOR - 1, 3), (MAJOR + 1, MINOR, 3)],
)
def test_the_reference_library_meets_hosts_of_other_times(major: int, minor: int, status: int) -> None:
    path = Path(infeng_core.__file__).parent / "libinfeng_reference.so"
    host = mirror.Host(ctypes.sizeof(mirror.Host) + 64, major, minor, None, b"future", b"")
    description = mirror.LibraryDesc(struct_size=ctypes.sizeof(mirror.LibraryDesc))
    assert ctypes.CDLL(str(path)).infeng_library(ctypes.byref(host), ctypes.byref(description)) == status
    assert (description.abi_major, description.abi_minor) == (MAJOR, MINOR)
    assert (description.name, bool(description.kernels)) == ((b"reference", True) if status == 0 else (None, False))
