"""Attention with tiles equals the reference byte for byte, and uses tiles only for blocks of many rows.

The tiles are plain loops here, which trap where the hardware would fault, so this runs on every CPU.
"""

import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest
from infeng_abi import CFLAGS, include_dir
from infeng_kit.cases import Case, case
from kernels.harness import find_kernel, reference

from infeng_core import _native as native
from infeng_core.kernels.problems import problem

SOURCE = Path(__file__).parent / "conformance" / "attention_tiles.cc"
REFERENCE = reference()
LEAST = 9  # rows of a problem that the kernels are for, and virtual rows of a block that goes over tiles
# Sequences as (rows, first position): chunks that begin and end off the blocks of 16 and splits of 256 tokens, one row
# beside many, rows of one block that see different splits.
STEPS = (
    ((9, 0),),
    ((16, 1),),
    ((17, 241),),
    ((12, 250), (1, 77), (20, 0)),
    ((33, 500),),
    ((1, 300), (1, 40), (11, 7)),
    ((100, 203),),
)
WINDOWS = (0, 0, 1, 33, 300, 16)
NEEDS: tuple[list[str], ...] = ([], ["softcap"], ["sinks"], [], ["sinks", "softcap"])
# One, two, three and four steps of 64 columns, whole and not; more than tiles are for.
SIZES = (64, 48, 80, 96, 128, 8, 36, 192, 200, 256, 264)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "libtiles.so"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-I{include_dir()}", *CFLAGS]
    subprocess.run(["c++", *flags, SOURCE, "-o", path], check=True)
    return path


def attention(
    step: Sequence[tuple[int, int]], dim: int, shared: int, window: int = 0, needs: Sequence[str] = ()
) -> Case:
    sizes = {"heads": 2 * shared, "kv_heads": 2, "head_dim": dim, "context": 720}
    steps = {"epilogues": ["quantize"]} if dim % 64 == 0 and shared % 2 else {}
    name = f"{step}-{dim}-{shared}-window{window}-{'+'.join(needs)}"
    more = {"window": window} if window else {}
    return case(name, "attention", step, kv="int8", needs=list(needs), **more, **sizes, **steps)


def cases() -> Iterator[Case]:
    """Every size of a head with every group of query heads from 1 to 8; steps, windows and needs take turns."""
    steps, windows, needs = cycle(STEPS), cycle(WINDOWS), cycle(NEEDS)
    for dim in SIZES:
        for shared in range(1, 9):
            yield attention(next(steps), dim, shared, next(windows), next(needs))


@pytest.mark.slow  # the compiler takes half a minute; the other formats are in scalar_library.cc
def test_attention_over_tiles_equals_the_reference_byte_for_byte(library: Path) -> None:
    tiles = native.open_library(str(library))

    def is_equal(each: Case) -> bool:
        return each.run(find_kernel(tiles, each.problem)) == each.run(find_kernel(REFERENCE, each.problem))

    assert [each.name for each in cases() if not is_equal(each)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "dim", "shared", "blocks", "products"),
    [
        pytest.param(((24, 40),), 64, 2, 4, 3, id="48 rows are three tiles"),
        pytest.param(((24, 40),), 96, 2, 4, 6, id="a second step of half a tile"),
        pytest.param(((9, 512),), 128, 1, 33, 2, id="three splits"),
        pytest.param(((9, 0), (1, 30)), 64, 4, 1, 3, id="beside a row that decodes"),
        pytest.param(((1, 100),) * 9, 64, 8, 0, 0, id="rows that decode"),
        pytest.param(((24, 40),), 264, 2, 0, 0, id="larger heads"),
    ],
)
def test_blocks_of_many_rows_use_tiles(
    step: tuple[tuple[int, int], ...], dim: int, shared: int, blocks: int, products: int, library: Path
) -> None:
    """``blocks`` of 16 tokens, each with so many products for each of the two key/value heads."""
    each = attention(step, dim, shared)
    take = ctypes.CDLL(str(library)).take_products
    take.restype = ctypes.c_int64
    kernel = find_kernel(native.open_library(str(library)), each.problem)
    take()
    each.run(kernel)
    assert take() == 2 * blocks * products


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, LEAST - 1, LEAST, 64])
def test_tile_kernels_accept_only_nine_rows_or_more(rows: int, library: Path) -> None:
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": 64, "context": 720}
    asked = problem({"op": "attention", "rows": [1, rows], "workers": 2, "kv": "int8", **sizes})
    accepts = [kernel.accepts(asked) for kernel in native.open_library(str(library)).kernels]
    assert any(accepts) == (rows >= LEAST)
