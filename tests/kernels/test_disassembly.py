"""No function of a kernel library holds instructions beyond the CPU features that it declares.

A library compiles the same templates several times with different flags. If two copies had the same name, the linker
would keep one, and a CPU without VNNI could be handed the copy with it: SIGILL, far from the cause. So the built
library is disassembled, function by function: those of the VNNI unit carry the backend's name, all others do without.
"""

import re
import shutil
import subprocess
from collections import defaultdict
from functools import cache

import pytest

from infeng_core.plug.manager import Plugins

VNNI = re.compile(r"\bvpdp(busds?|wssds?)\b")
# Mnemonics of extensions that no unit declares: VBMI, VBMI2, GFNI, IFMA, CD, BITALG, VPOPCNTDQ, BF16, FP16, AMX.
UNDECLARED = re.compile(
    r"\b(vpermi2b|vpermt2b|vpermb|vpmultishiftqb|vpshldv?[wdq]|vpshrdv?[wdq]|vp(compress|expand)[bw]|v?gf2p8\w+|vpmadd52\w+"
    r"|vpconflict\w|vplzcnt\w|vpopcnt\w|vpshufbitqmb|vdpbf16ps|vcvtne\w+|v(add|sub|mul|div|fmadd\d+|sqrt)[ps]h|tdp\w+|tileload\w*)\b"
)


@cache
def functions() -> dict[str, str]:
    """Disassemble the AVX-512 library: {mangled name of the function: its text}."""
    states = {state.name: state for state in Plugins.discover().library_states()}
    if "avx512" not in states:
        pytest.skip("infeng-avx512 is not installed")
    if shutil.which("objdump") is None:
        pytest.skip("objdump (binutils) is not installed")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(states["avx512"].path)], check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, list[str]] = defaultdict(list)
    name = ""
    for line in listing.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.+)>:", line):
            name = header[1]
        elif name:
            found[name].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def test_only_the_vnni_unit_holds_vnni_instructions() -> None:
    inside = {name for name, text in functions().items() if VNNI.search(text)}
    assert inside, "the VNNI unit holds no VNNI instruction: its functions were replaced by others"
    assert {name for name in inside if "4Vnni" not in name} == set()


def test_no_function_uses_an_extension_that_the_library_does_not_declare() -> None:
    found = {name: match[0] for name, text in functions().items() if (match := UNDECLARED.search(text))}
    assert found == {}


def test_the_entry_point_runs_on_any_x86() -> None:
    assert "zmm" not in functions()["infeng_library"]
    assert "ymm" not in functions()["infeng_library"]


def test_both_units_of_a_template_exist_side_by_side() -> None:
    names = [name for name in functions() if "nibbles" in name]
    assert any("4Vnni" in name for name in names)
    assert any("2Bw" in name for name in names)
