"""Opening kernel libraries: good ones of any minor version, and every kind of bad one."""

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from infeng_core import _native

VERSION = "{}.{}".format(*_native.ABI_VERSION)
REJECTED = {
    "NO_SYMBOL": ("missing_symbol", "does not export infeng_library"),
    "FAILS": ("entry_failed", "status 6 (internal)"),
    "MAJOR": ("abi_major", "the majors must be equal"),
    "MAJOR_REFUSES": ("abi_major", "the majors must be equal"),
    "NEWER_MINOR": ("abi_minor", "did not negotiate down"),
    "SIZE_TINY": ("bad_struct", "kernel 0 says that it has 4 bytes"),
    "SIZE_HUGE": ("bad_struct", "kernel 0 says that it has 1073741824 bytes"),
    "SIZE_HIDES_RUN": ("null_function", "no function `run`"),
    "DESC_GROWS": ("bad_struct", "its description has 4096 bytes"),
    "DESC_OVERRUN": ("bad_struct", "wrote past"),
    "CYCLE": ("bad_extension", "extension chain of plain"),
    "LIBRARY_CYCLE": ("bad_extension", "extension chain of the library"),
    "EXTENSION_SIZE": ("bad_extension", "3 bytes"),
    "REQUIRED_OF_LIBRARY": ("bad_extension", "the library requires extension 1234"),
    "HALF_AN_INSTANCE": ("null_function", "has one of the functions `create` and `destroy`"),
    "PREPARES_NOTHING": ("null_function", "has the function `prepare`, but not `create`"),
    "BOUND": ("bad_struct", "kernel plain has the bound 0.5, possible are 0 to 0.03125"),
    "NEGATIVE_BOUND": ("bad_struct", "kernel plain has the bound -0.01, possible are 0 to 0.03125"),
    "NAN_BOUND": ("bad_struct", "kernel plain has the bound "),
    "BEFORE_SINCE": ("abi_minor", f"this engine speaks {VERSION}: rebuild it with infeng-abi {VERSION}"),
    "NUMERICS": ("numerics", "by revision 2 of the numerics, this core by 1: their bytes differ"),
    "NO_ACCEPTS": ("null_function", "no function `accepts`"),
    "NO_TILES": ("null_function", "no function `tiles`"),
    "NO_RUN": ("null_function", "no function `run`"),
    "NO_NAME": ("bad_struct", "kernel 0 has no name"),
    "SAME_NAME": ("bad_struct", "two kernels named plain"),
    "NULL_KERNEL": ("bad_struct", "kernel 1 is NULL"),
    "COUNT": ("bad_struct", "lists -1 kernels"),
    "NULL_LIST": ("bad_struct", "lists 2 kernels"),
    "LIBRARY_NAME": ("bad_struct", "not a short plain word"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_broken_library_is_refused_with_its_path_and_the_reason(build, expect, case):
    path = build("hostile.c", f"-DCASE_{case}")
    code, text = REJECTED[case]
    with expect(code, text) as caught:
        _native.open_library(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    with expect(code):  # a second try gives the same answer
        _native.open_library(str(path))


def test_an_exception_thrown_from_the_entry_is_an_error_like_others(build, expect):
    with expect("entry_threw", "no licence found"):
        _native.open_library(str(build("hostile.c", "-DCASE_THROWS", "-xc++", compiler="c++")))


@pytest.mark.parametrize("case", ["PLAIN", "UNKNOWN_EXTENSION"])
def test_a_good_library_describes_its_kernels(build, case):
    path = build("hostile.c", f"-DCASE_{case}")
    library = _native.open_library(str(path), "avx2,fma")
    assert (library.name, library.path, library.abi) == ("hostile", str(path), _native.ABI_VERSION)
    first, second = library.kernels
    assert (first.library, first.name, first.op, first.kind) == ("hostile", "plain", "epilogue", "tiles")
    assert (first.features, first.numerics, first.priority, first.fuses) == (["avx2", "fma"], "approx", 7, [])
    assert second.name == "second"
    assert library.kernels[0] == first
    assert first != second


def test_the_same_file_gives_the_same_library(build):
    path = str(build("hostile.c", "-DCASE_PLAIN"))
    assert _native.open_library(path).kernels == _native.open_library(path).kernels


def test_a_newer_minor_that_negotiates_loads_without_its_new_ops(build):
    library = _native.open_library(str(build("hostile.c", "-DCASE_NEWER_MINOR_NEGOTIATES")))
    assert [kernel.name for kernel in library.kernels] == ["plain"]
    assert library.unknown == ["op 500 of kernel second"]
    assert library.abi == _native.ABI_VERSION


def test_a_kernel_that_requires_an_unknown_extension_is_left_out(build):
    library = _native.open_library(str(build("hostile.c", "-DCASE_REQUIRED_OF_KERNEL")))
    assert [kernel.name for kernel in library.kernels] == ["second"]
    assert library.unknown == ["extension 1234 of kernel plain"]


@pytest.mark.parametrize(("case", "text"), [("KIND", "kind 9"), ("CLASS", "numerics class 9")])
def test_a_kernel_of_an_unknown_kind_is_left_out_whatever_functions_it_has(build, case, text):
    library = _native.open_library(str(build("hostile.c", f"-DCASE_{case}")))
    assert [kernel.name for kernel in library.kernels] == ["second"]
    assert library.unknown == [f"{text} of kernel plain"]


def test_unknown_needs_are_left_out_of_a_kernel_that_handles_them(build):
    library = _native.open_library(str(build("hostile.c", "-DCASE_NEEDS")))
    [first, second] = library.kernels
    assert first.handles == ["window"] and "unknown" not in " ".join(second.handles + second.fuses)
    assert library.unknown == ["need 20 and 63 of kernel plain"]


def test_only_the_existing_fields_of_a_shorter_kernel_are_read(build, steps):
    library = _native.open_library(str(build("hostile.c", "-DCASE_SHORT_KERNEL")))
    steps(_native.Pool(1), library.kernels[0]).run()  # would jump to address 16 if pack_size were read


def test_a_missing_file_is_not_searched_for_elsewhere(expect, tmp_path):
    with expect("not_found", "No such file"):
        _native.open_library(str(tmp_path / "libnowhere.so"))
    with expect("not_found"):
        _native.open_library("libm.so.6")


def test_a_text_file_is_not_a_library(expect, tmp_path):
    path = tmp_path / "library.so"
    for content in (b"", b"x", b"hello, world" * 100):
        path.write_bytes(content)
        with expect("bad_file", "is not a shared library"):
            _native.open_library(str(path))


def test_a_program_is_not_a_library():
    with pytest.raises(_native.NativeError) as caught:
        _native.open_library(sys.executable)
    assert caught.value.code in {"bad_file", "dlopen_failed"}  # whether it could be mapped anywhere or not


def test_a_library_for_another_machine_is_named_as_such(build, expect, tmp_path):
    image = bytearray(build("hostile.c", "-DCASE_PLAIN").read_bytes())
    struct.pack_into("<H", image, 18, 243)  # RISC-V
    path = tmp_path / "other.so"
    path.write_bytes(image)
    with expect("wrong_arch", "ELF machine 243"):
        _native.open_library(str(path))


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6])
def test_a_truncated_library_is_an_error_and_not_a_bus_error(build, expect, tmp_path, part):
    image = build("toy.c").read_bytes()
    path = tmp_path / "short.so"
    path.write_bytes(image[: int(len(image) * part)])
    with expect("truncated", "install it again"):
        _native.open_library(str(path))


def test_a_library_with_an_unresolved_symbol_gives_the_loader_s_text(expect, tmp_path):
    path = tmp_path / "unresolved.so"
    source = tmp_path / "unresolved.c"
    source.write_text("int nowhere(void); int infeng_library(void) { return nowhere(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with expect("dlopen_failed", "undefined symbol: nowhere"):
        _native.open_library(str(path))


def test_opening_a_fast_math_library_leaves_the_caller_s_mode(tmp_path, expect):
    source = tmp_path / "fast.c"
    source.write_text(
        "#include <xmmintrin.h>\n__attribute__((constructor)) static void start(void) { _mm_setcsr(0x9fc0); }\n"
    )
    path = tmp_path / "fast.so"
    if os.uname().machine != "x86_64":
        pytest.skip("MXCSR belongs to x86-64")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with expect("missing_symbol"):
        _native.open_library(str(path))
    assert np.float32(1e-40) * np.float32(1) != 0


def test_problems_are_compared_and_printed_by_value():
    def make():
        return _native.Problem("linear", weight="int4-g64", act="int8-g64", epilogues=["bias"], rows=(1, 8), n=64, k=9)

    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != _native.Problem("linear")
    assert (make().epilogues, make().rows, make().weight, make().kv) == (["bias"], (1, 8), "int4-g64", None)
    assert repr(make()) == (
        "Problem('linear', weight='int4-g64', act='int8-g64', kv=None, epilogues=('bias',), needs=(), "
        "rows=(1, 8), n=64, k=9, context=0, heads=0, kv_heads=0, head_dim=0, v_head_dim=0, workers=1, "
        "experts=0, top_k=0)"
    )


def test_errors_about_unknown_words_list_the_known_ones(expect):
    with expect("unknown_name", "known are embed, rmsnorm, linear"):
        _native.Problem("linera")
    with expect("unknown_name", "weight format"):
        _native.Problem("linear", weight="int5")
    with expect("invalid_argument", "rows"):
        _native.Problem("linear", rows=(8, 1))


def test_a_kernel_answers_for_problems_of_its_op_only(toy, expect):
    assert toy["add_one"].accepts(_native.Problem("epilogue", n=64))
    assert not toy["add_one"].accepts(_native.Problem("linear", n=64))
    assert toy["total"].workspace(_native.Problem("epilogue", rows=(1, 10))) == (40, 256, 128)
    assert toy["whole"].workspace(_native.Problem("epilogue")) == (0, 0, 64)
    with expect("bad_workspace", "-1 shared"):
        toy["greedy"].workspace(_native.Problem("epilogue"))
