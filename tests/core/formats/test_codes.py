"""Given codes and scales are laid out like the built-in rounding's, read back, and refused off the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.formats.quant import BUILTIN, Grid, QuantFormat, SubGrid

SUB_SCALED = ["int4-p32", "int5-p32", "int6-p32"]  # whose sub-scales and zero points are integers as well
INTEGERS = sorted(
    name for name, format in BUILTIN.items() if not (format.is_float or format.minima is not None or name in SUB_SCALED)
)


def grid(format: str, k: int) -> Grid:
    found = BUILTIN[format].grid(k)
    assert found is not None
    return found


def panels(format: QuantFormat, n: int, k: int) -> NDArray[np.uint8]:
    return np.full(-(-n // 16) * format.panel_bytes(k), 0xA5, np.uint8)


@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize(("n", "k"), [(16, 64), (1, 8), (33, 172), (40, 576), (17, 20)])
def test_codes_and_scales_of_panels_give_the_same_panels(format: str, n: int, k: int) -> None:
    used, w = BUILTIN[format], np.random.default_rng(n * k).standard_normal((n, k), np.float32)
    packed, laid_out = panels(used, n, k), panels(used, n, k)
    used.pack(w, packed)
    codes, scales = used.unpack_codes(packed, 0, -(-n // 16), k)
    used.pack_codes(codes[:n], scales[:n], laid_out, threads=2)
    np.testing.assert_array_equal(laid_out, packed)


def test_integer_formats_without_minima_have_a_grid_and_no_float_format_has_one() -> None:
    assert INTEGERS == ["int4-g32", "int4-g64", "int8-g32", "int8-row"]
    assert {name for name, format in BUILTIN.items() if format.grid(96) is not None} == {*INTEGERS, *SUB_SCALED}
    assert [(g.group, g.low, g.high, g.scale.name, g.sub) for g in (grid(name, 96) for name in SUB_SCALED)] == [
        (96, 0, 15, "float32", SubGrid(32, 16)),
        (96, 0, 31, "float32", SubGrid(32, 8)),
        (96, 0, 63, "float32", SubGrid(32, 4)),
    ]
    assert [(g.group, g.low, g.high, g.scale.name) for g in (grid(name, 96) for name in INTEGERS)] == [
        (32, -8, 7, "float16"),
        (64, -8, 7, "float16"),
        (32, -128, 127, "float16"),
        (96, -127, 127, "float32"),
    ]
    assert QuantFormat("of a plugin", "f32").grid(96) is None


@pytest.mark.parametrize("format", INTEGERS)
def test_any_codes_and_scales_of_the_grid_come_back_and_are_the_weights(format: str) -> None:
    used, given, (n, k) = BUILTIN[format], grid(format, 172), (33, 172)
    rng = np.random.default_rng(5)
    codes = rng.integers(given.low, given.high, (n, k), np.int8, endpoint=True)
    scales = rng.standard_normal((n, given.groups(k))).astype(np.float32)
    out = panels(used, 2 * 48, k)
    for first in (0, 1):  # as gate and up are
        used.pack_codes(codes, scales, out, first_panel=first, panel_step=2)
    stored = scales.astype(given.scale).astype(np.float32)  # rounded as NumPy rounds
    for first in (0, 1):
        place = {"first_panel": first, "panel_step": 2}
        q, s = used.unpack_codes(out, 0, 3, k, **place)
        np.testing.assert_array_equal(q[:n], codes)
        np.testing.assert_array_equal(s[:n], stored)
        assert not q[n:].any() and not s[n:].any()
        np.testing.assert_array_equal(
            used.unpack(out, 0, 3, k, **place)[:n], np.repeat(stored, given.group, 1)[:, :k] * codes
        )


def test_codes_that_are_no_rows_of_memory_are_taken_by_value() -> None:
    used, rng = BUILTIN["int4-g32"], np.random.default_rng(6)
    codes, scales = rng.integers(-8, 8, (20, 70), np.int8), rng.random((20, 3), np.float32)
    plain, turned = panels(used, 20, 70), panels(used, 20, 70)
    used.pack_codes(codes, scales, plain)
    used.pack_codes(np.asfortranarray(codes), np.asfortranarray(scales), turned)
    np.testing.assert_array_equal(plain, turned)


Change = Callable[[NDArray[np.int8], NDArray[np.float32]], tuple[Any, Any]]


def at(row: int, column: int, value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(array: NDArray[Any]) -> NDArray[Any]:
        array[row, column] = value
        return array

    return change


@pytest.mark.parametrize(
    ("format", "change", "code", "message"),
    [
        ("int4-g64", lambda q, s: (at(17, 65, 8)(q), s), "out_of_range", "row 17, column 65: code 8 is outside of -8"),
        ("int8-row", lambda q, s: (at(2, 0, -128)(q), s), "out_of_range", "row 2, column 0: code -128 is outside of"),
        ("int4-g64", lambda q, s: (q, at(17, 1, np.nan)(s)), "not_finite", "row 17, columns from 64: the scale is nan"),
        ("int8-row", lambda q, s: (q, at(0, 0, np.inf)(s)), "not_finite", "row 0, columns from 0: the scale is inf"),
        ("int4-g32", lambda q, s: (q, at(3, 2, -65520)(s)), "out_of_range", "row 3, columns from 64: .* too large for"),
        ("int8-g32", lambda q, s: (q, at(3, 2, 65520)(s)), "out_of_range", "row 3, columns from 64: .* too large for"),
        ("int4-g64", lambda q, s: (q.astype(int), s), "invalid_argument", "the codes are int64, not int8"),
        ("int4-g64", lambda q, s: (q, s.astype(float)), "invalid_argument", "the scales are float64, not float32"),
        ("int4-g64", lambda q, s: (q, s[:, :1]), "invalid_argument", r"the scales are \(20, 1\), not \(20, 2\)"),
        ("int4-g64", lambda q, s: (q[0], s), "invalid_argument", "the codes are no matrix"),
    ],
)  # fmt: skip
def test_codes_off_the_grid_are_refused_with_their_place(format: str, change: Change, code: str, message: str) -> None:
    used, groups = BUILTIN[format], grid(format, 70).groups(70)
    codes, scales = change(np.zeros((20, 70), np.int8), np.ones((20, groups), np.float32))
    with pytest.raises(NativeError, match=message) as caught:
        used.pack_codes(codes, scales, panels(used, 20, 70))
    assert caught.value.code == code


def test_the_largest_scale_of_fp16_is_stored_and_a_code_of_a_float_format_is_not() -> None:
    used = BUILTIN["int4-g64"]
    out = panels(used, 1, 64)
    used.pack_codes(np.ones((1, 64), np.int8), np.full((1, 1), 65519, np.float32), out)
    assert used.unpack_codes(out, 0, 1, 64)[1][0, 0] == 65504
    with pytest.raises(NativeError, match="bf16 has no codes and scales"):
        BUILTIN["bf16"].pack_codes(np.ones((1, 64), np.int8), np.ones((1, 1), np.float32), out)


# ------------------------------------------------------------------------------------------- with integer sub-scales


def units(format: str, n: int, k: int) -> dict[str, NDArray[Any]]:
    """Any codes, sub-scales and zero points that a format stores."""
    rng, given = np.random.default_rng(n * k), grid(format, k)
    assert given.sub is not None
    groups = given.sub.groups(k)
    zeros = rng.integers(0, given.high, (n, groups), np.int8, endpoint=True)
    sub_scales = rng.integers(1, given.sub.high, (n, groups), np.int8, endpoint=True)
    wide, zero = (np.repeat(x, 32, 1)[:, :k].astype(int) for x in (sub_scales, zeros))
    codes = rng.integers(0, given.high, (n, k), endpoint=True)
    codes = np.clip(codes, np.maximum(0, zero - 128 // wide), np.minimum(given.high, zero + 127 // wide))
    scales = rng.standard_normal((n, 1)).astype(np.float32)
    return {"codes": codes.astype(np.int8), "scales": scales, "sub_scales": sub_scales, "zeros": zeros}


@pytest.mark.parametrize("format", SUB_SCALED)
@pytest.mark.parametrize(("n", "k"), [(16, 64), (1, 8), (33, 172), (40, 576), (17, 20)])
def test_units_of_panels_give_the_same_panels(format: str, n: int, k: int) -> None:
    used, w = BUILTIN[format], np.random.default_rng(n * k).standard_normal((n, k), np.float32)
    w[0] = 0
    packed, laid_out = panels(used, n, k), panels(used, n, k)
    used.pack(w, packed)
    codes, scales, sub_scales, zeros = (part[:n] for part in used.unpack_units(packed, 0, -(-n // 16), k))
    used.pack_codes(codes, scales, laid_out, sub_scales=sub_scales, zeros=zeros, threads=2)
    np.testing.assert_array_equal(laid_out, packed)


@pytest.mark.parametrize("format", SUB_SCALED)
def test_any_units_come_back_and_are_the_weights(format: str) -> None:
    used, (n, k) = BUILTIN[format], (33, 172)
    given = units(format, n, k)
    out = panels(used, 2 * 48, k)
    for first in (0, 1):
        used.pack_codes(**given, out=out, first_panel=first, panel_step=2)
    used.check(out, 0, 6, k)
    for first in (0, 1):
        place = {"first_panel": first, "panel_step": 2}
        made = used.unpack_units(out, 0, 3, k, **place)
        for part, wanted in zip(made, ("codes", "scales", "sub_scales", "zeros"), strict=True):
            np.testing.assert_array_equal(part[:n], given[wanted])
        wide, zero = (np.repeat(given[x], 32, 1)[:, :k].astype(np.float32) for x in ("sub_scales", "zeros"))
        weights = given["scales"] * (wide * (given["codes"] - zero))
        np.testing.assert_array_equal(used.unpack(out, 0, 3, k, **place)[:n], weights)
        assert not used.unpack(out, 0, 3, k, **place)[n:].any()


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        ("codes", at(17, 65, 16), "out_of_range", "row 17, column 65: code 16 is outside of 0 to 15"),
        ("codes", at(2, 0, -1), "out_of_range", "row 2, column 0: code -1 is outside of 0 to 15"),
        ("sub_scales", at(3, 1, 0), "out_of_range", "row 3, columns from 32: sub-scale 0 is outside of 1 to 16"),
        ("sub_scales", at(3, 1, 17), "out_of_range", "row 3, columns from 32: sub-scale 17 is outside of 1 to 16"),
        ("zeros", at(0, 2, 16), "out_of_range", "row 0, columns from 64: zero point 16 is outside of 0 to 15"),
        ("zeros", at(0, 2, -1), "out_of_range", "row 0, columns from 64: zero point -1 is outside of 0 to 15"),
        ("scales", at(17, 0, np.nan), "not_finite", "row 17: the scale is nan"),
        ("scales", lambda d: d[:, :0], "invalid_argument", r"the scales are \(20, 0\), not \(20, 1\)"),
        ("zeros", lambda z: z[:, :1], "invalid_argument", r"the zero points are \(20, 1\), not \(20, 3\)"),
        ("sub_scales", lambda s: s.astype(int), "invalid_argument", "the sub-scales are int64, not int8"),
        ("codes", lambda q: q[:, :0], "invalid_argument", "the codes have no columns"),
    ],
)  # fmt: skip
def test_units_off_the_grid_are_refused_with_their_place(
    name: str, change: Callable[[NDArray[Any]], NDArray[Any]], code: str, message: str
) -> None:
    used, given = BUILTIN["int4-p32"], units("int4-p32", 20, 70)
    with pytest.raises(NativeError, match=message) as caught:
        used.pack_codes(**{**given, name: change(given[name])}, out=panels(used, 20, 70))
    assert caught.value.code == code


def test_a_weight_of_more_than_eight_bits_is_refused_and_the_last_that_fits_is_stored() -> None:
    used, out = BUILTIN["int4-p32"], panels(BUILTIN["int4-p32"], 1, 32)
    one = {"scales": np.ones((1, 1), np.float32), "sub_scales": np.full((1, 1), 16, np.int8), "out": out}
    for zero, code, fits in ((0, 7, True), (0, 8, False), (8, 0, True), (9, 0, False)):
        codes = np.full((1, 32), zero, np.int8)
        codes[0, 5] = code
        given = {**one, "codes": codes, "zeros": np.full((1, 1), zero, np.int8)}
        if fits:
            used.pack_codes(**given)
        else:
            with pytest.raises(NativeError, match=r"row 0, column 5: the weight is -?1\d\d steps, outside of -128 to"):
                used.pack_codes(**given)


def test_units_of_a_format_without_sub_scales_are_refused() -> None:
    used = BUILTIN["int8-row"]
    with pytest.raises(NativeError, match="int8-row has no integer sub-scales"):
        used.pack_codes(**units("int4-p32", 1, 64), out=panels(used, 1, 64))
