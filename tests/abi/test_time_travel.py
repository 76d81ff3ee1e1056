"""Libraries of other times: older minors always load, newer ones negotiate down or are refused, majors never mix."""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import infeng_abi
import pytest
from kernels import abi_mirror as mirror

from infeng_core import _native as native
from infeng_core.kernels.libraries import libraries
from infeng_core.plug.manager import Plugins

from .test_third_party import run_triple

Build = Callable[..., Path]
MAJOR, MINOR = native.ABI_VERSION
SINCE = int(
    re.search(r"#define INFENG_ABI_SINCE (\d+)", (infeng_abi.include_dir() / "infeng" / "abi.h").read_text())[1]
)
RELEASED = sorted((Path(__file__).parents[2] / "abi" / "released").glob("*"))

VERSION = f"#define INFENG_ABI_MINOR {MINOR}\n"
PACK = "  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);\n"
THREADS = "  infeng_status (*thread_enter)(void);\n  void (*thread_exit)(void);\n"
OLDER = (  # an older minor that still understands this one: the last fields of some structs were not there
    (VERSION, f"#define INFENG_ABI_MINOR {max(SINCE, MINOR - 1)}\n"),
    (PACK, ""),
    (THREADS, ""),
)
NEWER = (  # the next minor: a new op and new fields at the ends of structs
    (VERSION, f"#define INFENG_ABI_MINOR {MINOR + 1}\n#define INFENG_FUTURE\n"),
    ("  int32_t reserved;\n} infeng_problem;", "  int32_t reserved;\n  int64_t future;\n} infeng_problem;"),
    (THREADS, THREADS + "  uint64_t flavour;\n"),
    (PACK, PACK + "  void (*warm)(void);\n"),
)


def of_major(major: int) -> tuple[tuple[str, str], ...]:
    """Return the edits that make the header the first of a later major."""
    return (
        (f"#define INFENG_ABI_MAJOR {MAJOR}\n", f"#define INFENG_ABI_MAJOR {major}\n"),
        (VERSION, "#define INFENG_ABI_MINOR 0\n"),
        (f"#define INFENG_ABI_SINCE {SINCE}\n", "#define INFENG_ABI_SINCE 0\n"),
    )


def refused(path: Path, code: str, text: str) -> None:
    with pytest.raises(native.NativeError) as caught:
        native.open_library(str(path))
    assert (caught.value.code, text in str(caught.value)) == (code, True), str(caught.value)


def speaks(include: Path) -> bool:
    """Return whether libraries of a released header are understood; its folder is named after its version."""
    version = tuple(map(int, include.name.split(".")))
    return version[0] == MAJOR and version[1] >= SINCE


@pytest.mark.parametrize("flags", [(), ("-DSDK_ENTRY",)], ids=["by hand", "sdk"])
def test_a_library_of_this_header_loads_and_runs(build: Build, flags: tuple[str, ...]) -> None:
    run_triple(build(infeng_abi.include_dir(), *flags))


@pytest.mark.parametrize("include", RELEASED, ids=lambda path: path.name)
def test_a_library_of_every_released_header_runs_or_is_refused_with_the_remedy(build: Build, include: Path) -> None:
    if speaks(include):
        run_triple(build(include))
        return
    ours = f"{MAJOR}.{MINOR}"
    text = f"built for ABI {include.name}, this engine speaks {ours}: rebuild it with infeng-abi {ours}"
    refused(build(include), "abi_minor", text)


def test_an_older_minor_loads_and_nothing_beyond_its_structs_is_read(build: Build, fabricate: Build) -> None:
    path = build(fabricate(*OLDER), "-DAT_PAGE_END")
    assert native.open_library(str(path)).abi == (MAJOR, max(SINCE, MINOR - 1))
    run_triple(path)


@pytest.mark.parametrize("flags", [("-DNEGOTIATES",), ("-DSDK_ENTRY",)], ids=["by hand", "sdk"])
def test_a_newer_minor_that_negotiates_down_loads_without_unknown_kernels(
    build: Build, fabricate: Build, flags: tuple[str, ...]
) -> None:
    path = build(fabricate(*NEWER), *flags)
    library = native.open_library(str(path))
    assert library.abi == (MAJOR, MINOR)
    assert [kernel.name for kernel in library.kernels] == ["triple"]
    run_triple(path)


def test_a_newer_minor_that_does_not_negotiate_is_refused_with_both_versions(build: Build, fabricate: Build) -> None:
    path = build(fabricate(*NEWER))
    refused(path, "abi_minor", f"speaks kernel ABI {MAJOR}.{MINOR + 1}, this core speaks {MAJOR}.{MINOR}")


@pytest.mark.parametrize("major", [MAJOR + 1, MAJOR + 2])
@pytest.mark.parametrize("flags", [("-DNEGOTIATES",), ("-DSDK_ENTRY",)], ids=["by hand", "sdk"])
def test_another_major_is_refused_before_other_fields_are_read(
    build: Build, fabricate: Build, major: int, flags: tuple[str, ...]
) -> None:
    path = build(fabricate(*of_major(major)), *flags)
    refused(path, "abi_major", f"speaks kernel ABI {major}.0, this core speaks {MAJOR}.{MINOR}")


def test_unknown_extensions_are_skipped_and_a_circle_of_them_is_refused(build: Build, fabricate: Build) -> None:
    include = fabricate(*NEWER)
    run_triple(build(include, "-DNEGOTIATES"))
    refused(build(include, "-DNEGOTIATES", "-DCYCLIC"), "bad_extension", "runs in a circle")


SHIPPED = {library.name: library.path for library in libraries(Plugins.discover())}


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize(
    ("major", "minor", "speaks_as"),
    [
        (MAJOR, MINOR, MINOR),
        (MAJOR, MINOR + 7, MINOR),
        (MAJOR, SINCE, SINCE),
        (MAJOR, SINCE - 1, None),
        (MAJOR + 1, MINOR, None),
    ],
)
def test_shipped_libraries_negotiate_with_older_and_newer_hosts(
    name: str, major: int, minor: int, speaks_as: int | None
) -> None:
    host = mirror.Host(ctypes.sizeof(mirror.Host) + 64, major, minor, None, b"future", b"")
    longer = (ctypes.c_char * (ctypes.sizeof(mirror.LibraryDesc) + 64 * (minor > MINOR)))()
    description = mirror.LibraryDesc.from_buffer(longer)
    description.struct_size = len(longer)
    status = ctypes.CDLL(SHIPPED[name]).infeng_library(ctypes.byref(host), ctypes.byref(description))
    assert status == (3 if speaks_as is None else 0)
    assert (description.abi_major, description.abi_minor) == (MAJOR, MINOR if speaks_as is None else speaks_as)
    found = (description.name, bool(description.kernels))
    assert found == ((None, False) if speaks_as is None else (name.encode(), True))
