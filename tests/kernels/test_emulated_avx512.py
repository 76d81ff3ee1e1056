"""The AVX-512 kernels on a processor without AVX-512: their instructions as loops (emulated/immintrin.h)."""

import re
import subprocess
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from kernels.driver import REFERENCE, ROOT, compile_to, run

from infeng_core import _native as native

FLAGS = ("-std=c++20", "-O1", "-w", "-mavx2", "-mfma", "-mf16c", "-fno-math-errno")
EXTENSIONS = {
    "bw": (),
    "vnni": ("-DINFENG_EMULATED_VNNI",),
    "gfni": ("-DINFENG_EMULATED_VNNI", "-DINFENG_EMULATED_GFNI"),
}

nightly = pytest.mark.nightly  # the compiler takes minutes for each
INTEGERS = ("linear_p32", "linear_affine", "linear_int4", "linear_int8", "attention_int")
UNITS = [
    pytest.param("rmsnorm", "bw", marks=pytest.mark.slow),
    *(pytest.param(name, "bw", marks=nightly) for name in ("kv_append", "epilogue", "attention_f16", "attention_fp8h")),
    *(pytest.param(name, unit, marks=nightly) for name in INTEGERS for unit in ("bw", "vnni")),
    pytest.param("linear_int4", "gfni", marks=nightly),
]


def library_of(source: Path, unit: str, folder: Path) -> Path:
    """Compile a source of the kernels over emulated instructions into a library of its own."""
    emulated, compiled = Path(__file__).parent / "emulated", folder / "unit.o"
    flags = [f"-I{emulated}", f"-I{include_dir()}", f"-I{source.parent}", *CFLAGS, "-fPIC", *FLAGS]
    subprocess.run(["c++", *flags, *EXTENSIONS[unit], "-c", source, "-o", compiled], check=True)
    symbols = subprocess.run(["nm", compiled], capture_output=True, text=True, check=True).stdout
    names = [name for name in re.findall(r" [RDrd] (\w+)$", symbols, re.MULTILINE) if name.islower()]
    assert names
    entry = folder / "library.cc"
    listed = " ".join(f"X({name})" for name in names)
    entry.write_text(
        f'#include <infeng/ops/library.h>\n#define KERNELS(X) {listed}\nINFENG_LIBRARY("emulated", "0", KERNELS)\n'
    )
    return compile_to(folder / "libemulated.so", "c++", "-std=c++20", "-shared", entry, compiled)


@pytest.mark.skipif(
    "avx512_vnni" in native.cpu_info().features, reason="this processor runs the kernels themselves, in other tests"
)
@pytest.mark.skipif("f16c" not in native.cpu_info().features, reason="the emulation needs AVX2, FMA and F16C")
@pytest.mark.parametrize(("name", "unit"), UNITS)
def test_avx512_kernels_over_emulated_instructions_equal_the_reference(
    name: str, unit: str, driver: Path, tmp_path: Path
) -> None:
    library = library_of(ROOT / "plugins" / "avx512" / f"{name}.cc", unit, tmp_path)
    output = run(driver, REFERENCE, library, "avx512_vnni,gfni", "0.02")
    assert output.count("cases equal") == len(native.open_library(str(library)).kernels)
