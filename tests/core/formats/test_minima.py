"""Formats with minima: the layout of given codes, damaged panels, and refused values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from goldens.panels import with_minima
from infeng_convert.quantizers import DEFAULT
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.errors import UsageError
from infeng_core.formats.quant import BUILTIN, QuantFormat

SUPERBLOCKS = {"int4-a256": 256, "int4-a128": 128}
SIZES = [(16, 256), (1, 8), (33, 300), (40, 576), (17, 20)]


def parts(format: str, n: int, k: int) -> dict[str, NDArray[Any]]:
    """Return any codes, bytes, and scales of fp16."""
    rng, grid = np.random.default_rng(n * k), BUILTIN[format].minima
    assert grid is not None
    blocks, groups = (n, grid.superblocks(k)), (n, grid.groups(k))
    return {
        "codes": rng.integers(0, 16, (n, k), np.int8),
        "scales": rng.standard_normal(blocks).astype(np.float16).astype(np.float32),
        "minimum_scales": rng.standard_normal(blocks).astype(np.float16).astype(np.float32),
        "sub_scales": rng.integers(0, 256, groups, np.uint8),
        "minima": rng.integers(0, 256, groups, np.uint8),
    }


def panels(format: QuantFormat, n: int, k: int) -> NDArray[np.uint8]:
    return np.full(-(-n // 16) * format.panel_bytes(k), 0xA5, np.uint8)


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize(("format", "size"), SUPERBLOCKS.items())
def test_given_codes_and_minima_are_stored_unchanged(format: str, size: int, n: int, k: int) -> None:
    used, given, out = BUILTIN[format], parts(format, n, k), panels(BUILTIN[format], n, k)
    used.pack_minima(**given, out=out, threads=2)
    found = with_minima(size, out.reshape(-1, used.panel_bytes(k)))
    stored = (found.u[:n, :k], found.d[:n], found.e[:n], found.s[:n], found.t[:n])
    for ours, name in zip(stored, given, strict=True):
        np.testing.assert_array_equal(ours[:, : given[name].shape[1]], given[name])
    assert not found.d[n:].any() and not found.e[n:].any() and not found.u[:, k:].any()
    wide = {name: given[name].repeat(width, axis=1)[:, :k].astype(np.float64) for name, width in (
        ("scales", size), ("minimum_scales", size), ("sub_scales", 32), ("minima", 32))}  # fmt: skip
    values = wide["scales"] * wide["sub_scales"] * given["codes"] - wide["minimum_scales"] * wide["minima"]
    np.testing.assert_array_equal(used.unpack(out, 0, -(-n // 16), k)[:n], values.astype(np.float32))


@pytest.mark.parametrize("format", SUPERBLOCKS)
def test_panels_step_over_those_of_other_parts(format: str) -> None:
    used, given = BUILTIN[format], parts(format, 30, 100)
    whole, out = panels(used, 30, 100), panels(used, 96, 100)
    used.pack_minima(**given, out=whole)
    used.pack_minima(**given, out=out, first_panel=1, panel_step=3)
    rows = out.reshape(6, -1)
    np.testing.assert_array_equal(rows[[1, 4]].ravel(), whole)
    assert (rows[[0, 2, 3, 5]] == 0xA5).all()


def at(row: int, column: int, value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        array = array.copy()
        array[row, column] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        ("codes", at(18, 70, 16), "out_of_range", "row 18, column 70: code 16 is outside of 0 to 15"),
        ("codes", at(2, 1, -1), "out_of_range", "row 2, column 1: code -1 is outside"),
        ("scales", at(18, 1, np.nan), "not_finite", "row 18, columns from 128: the scale is nan"),
        ("minimum_scales", at(3, 1, -70000), "out_of_range", "row 3, columns from 128: the scale -70000 is too large"),
        ("codes", lambda a: a.astype(np.uint8), "invalid_argument", "the codes are uint8, not int8"),
        ("minima", lambda a: a.astype(np.int8), "invalid_argument", "the minima are int8, not uint8"),
        ("scales", lambda a: a[:, :1], "invalid_argument", r"the scales are \(20, 1\), not \(20, 2\)"),
        ("sub_scales", lambda a: a[1:], "invalid_argument", r"the sub-scales are \(19, 6\), not \(20, 6\)"),
    ],
)
def test_values_that_the_format_cannot_hold_are_refused_with_their_place(
    name: str, change: Callable[[NDArray[Any]], NDArray[Any]], code: str, message: str
) -> None:
    used, given = BUILTIN["int4-a128"], parts("int4-a128", 20, 170)
    with pytest.raises(NativeError, match=message) as caught:
        used.pack_minima(**{**given, name: change(given[name])}, out=panels(used, 20, 170))
    assert caught.value.code == code


@pytest.mark.parametrize(("format", "size"), SUPERBLOCKS.items())
def test_a_panel_whose_scales_are_not_finite_is_refused_with_its_place(format: str, size: int) -> None:
    used, k = BUILTIN[format], size + 64
    out = panels(used, 40, k)
    used.pack_minima(**parts(format, 40, k), out=out)
    used.check(out, 0, 3, k, threads=2)
    rows = out.reshape(3, -1)
    second = 64 + size // 64 * 576  # where the second superblock begins
    rows[1, second + 32 + 2 * 5 : second + 32 + 2 * 5 + 2] = [0, 0xFC]
    with pytest.raises(NativeError, match=f"row 21, columns from {size}: the scale of minima is NaN or inf") as caught:
        used.check(out, 0, 3, k)
    assert caught.value.code == "not_finite"
    rows[0, 1] = 0x7E
    with pytest.raises(NativeError, match="row 0, columns from 0: the scale of sub-scales is NaN"):
        used.check(out, 0, 3, k)


def test_other_formats_have_no_minima_and_no_quantizer_is_asked_for_one() -> None:
    assert {name for name, format in BUILTIN.items() if format.minima is not None} == set(SUPERBLOCKS)
    assert all(BUILTIN[name].grid(96) is None for name in SUPERBLOCKS)
    with pytest.raises(NativeError, match="int4-p32 has no minima"):
        BUILTIN["int4-p32"].pack_minima(**parts("int4-a256", 1, 64), out=panels(BUILTIN["int4-p32"], 1, 64))
    with pytest.raises(UsageError, match="does not reach int4-a256"):
        DEFAULT.require_use({"embed": BUILTIN["int4-a256"]}, is_calibrated=True)


@pytest.mark.parametrize("format", SUPERBLOCKS)
def test_weights_that_are_too_large_or_too_small_for_fp16_scales(format: str) -> None:
    used, w = BUILTIN[format], np.zeros((20, 300), np.float32)
    w[17, 280] = 3e8
    with pytest.raises(NativeError, match="row 17, columns from 256: values too large for an fp16 scale"):
        used.pack(w, panels(used, 20, 300))
    w[17, 280] = 2e8
    out = panels(used, 20, 300)
    used.pack(w, out)
    assert used.unpack(out, 0, 2, 300)[17, 280] == pytest.approx(2e8, rel=1e-2)
    tiny = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32) * np.float32(2e-6)
    out = panels(used, 16, 256)
    used.pack(tiny, out)
    error = used.unpack(out, 0, 1, 256) - tiny
    assert np.sqrt((error**2).mean() / (tiny**2).mean()) < 0.15  # steps of 2^-24 are a tenth of them
