"""No kernel can reach an instruction beyond the CPU features that it declares.

A library compiles the same templates several times with different flags. If two copies had the same name, the linker
would keep one, and a CPU without VNNI could be handed the copy with it: SIGILL, far from the cause. So every library
that is installed is disassembled, and what each kernel calls is assembled again for a CPU that has just what the kernel
declares. Nothing is executed, so libraries that this CPU cannot run are checked as well.
"""

import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from kernels.disassembly import Code, assembles, entry_points

from infeng_core.kernels.libraries import LibraryState, library_states
from infeng_core.plug.manager import Plugins

STATES = {state.name: state for state in library_states(Plugins.discover())}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 instructions"),
    pytest.mark.skipif(not (shutil.which("objdump") and shutil.which("as")), reason="binutils is not installed"),
]

libraries = pytest.mark.parametrize("state", STATES.values(), ids=STATES)


@cache
def code(path: Path) -> Code:
    return Code(path)


@libraries
def test_loading_a_library_needs_no_cpu_feature(state: LibraryState) -> None:
    library = code(state.path)
    startup = [address for address, name in library.names.items() if name in ("_init", "_fini", "frame_dummy")]
    functions = library.reachable([library.address("infeng_library"), *startup])
    assert library.beyond(functions, ()) == []


@libraries
def test_no_kernel_reaches_an_instruction_of_an_undeclared_feature(state: LibraryState) -> None:
    library = code(state.path)
    groups: dict[frozenset[str], set[int]] = {}
    for name, (own, addresses) in entry_points(state.path).items():
        groups.setdefault(state.features_of(name, own), set()).update(library.reachable(addresses))
    assert groups
    assert {
        features: beyond for features, reached in groups.items() if (beyond := library.beyond(reached, features))
    } == {}


@libraries
def test_no_function_uses_a_feature_that_its_library_does_not_declare(state: LibraryState) -> None:
    library = code(state.path)
    declared = frozenset[str]().union(
        *(state.features_of(name, own) for name, (own, _) in entry_points(state.path).items())
    )
    assert library.beyond(library.names, declared) == []


@libraries
def test_a_kernel_that_asks_for_a_feature_uses_it(state: LibraryState) -> None:
    """Otherwise the linker replaced its functions by those of another unit, and the feature is not needed.

    A kernel that is one call of another library has the feature's instructions there.
    """
    library = code(state.path)
    elsewhere = {kernel.name for kernel in state.native.kernels if kernel.kind == "whole"} if state.native else set()
    for name, (own, addresses) in entry_points(state.path).items():
        if name in elsewhere:
            continue
        reached = library.reachable(addresses)
        for feature in own:
            assert library.beyond(reached, state.features_of(name, own) - {feature}), f"{name} does not use {feature}"


KERNEL = """
#include <infeng/abi.h>
template <class T> __attribute__((noinline)) T sum(const T* x) {
  T s = 0;
  for (int i = 0; i < 64; ++i) s += x[i] & 3;
  return s;
}
static infeng_status run(const infeng_args* a, int32_t, int64_t, int64_t, infeng_worker*) { return sum((const int*)a); }
#define ROW(title, needs) extern "C" constinit const infeng_kernel title = {            \\
  .struct_size = sizeof(infeng_kernel), .op = INFENG_OP_ROPE, .name = #title, .features = needs, .run = run};
"""
LIBRARY = """
#include <infeng/abi.h>
extern "C" const infeng_kernel fast, plain;
static const infeng_kernel* const kernels[] = {&fast, &plain};
extern "C" infeng_status infeng_library(const infeng_host*, infeng_library_desc* out) {
  out->kernels = kernels;
  out->kernel_count = 2;
  return INFENG_OK;
}
"""


def test_instructions_are_attributed_to_the_right_feature() -> None:
    texts = ["vpaddd %ymm1,%ymm2,%ymm3", "{vex} vpdpbusd %ymm1,%ymm2,%ymm3", "vpdpbusd %zmm1,%zmm2,%zmm3", "nop"]
    assert assembles(texts, []) == [False, False, False, True]
    assert assembles(texts, ["avx2"]) == [True, False, False, True]
    assert assembles(texts, ["avx_vnni"]) == [True, True, False, True]
    assert assembles(texts, ["avx512_vnni"]) == [True, False, True, True]


def test_a_library_that_declares_too_few_features_is_detected(tmp_path: Path) -> None:
    """The linker merges two copies of a function, as it does with templates, and keeps the one with AVX2."""
    flags = [f"-I{include_dir()}", *CFLAGS, "-fPIC", "-O2"]
    (tmp_path / "kernel.h").write_text(KERNEL)
    for name, feature, extra in (("fast", "avx2", ["-O3", "-mavx2"]), ("plain", "", ["-O3"])):
        source = tmp_path / f"{name}.cc"
        source.write_text(f'#include "kernel.h"\nROW({name}, "{feature}")\n')
        subprocess.run(["c++", "-std=c++20", *flags, *extra, "-c", source, "-o", tmp_path / f"{name}.o"], check=True)
    (tmp_path / "library.cc").write_text(LIBRARY)
    path = tmp_path / "libmerged.so"
    objects = [tmp_path / "fast.o", tmp_path / "plain.o"]
    subprocess.run(["c++", "-std=c++20", *flags, "-shared", *objects, tmp_path / "library.cc", "-o", path], check=True)
    library = Code(path)
    entries = entry_points(path)
    assert library.beyond(library.reachable(entries["fast"][1]), ["avx2"]) == []
    assert any("ymm" in text for text in library.beyond(library.reachable(entries["plain"][1]), []))
