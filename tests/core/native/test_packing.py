"""Packing: the bytes of each format, the quantization rule of docs/numerics.md, and refused values."""

import numpy as np
import pytest

from infeng_core import _native as native
from infeng_core.formats.packing import packer

FORMATS = list(native.WEIGHT_FORMATS)
INTEGERS = [name for name in FORMATS if native.weight_format(name).group]
SUB_SCALED = {"int4-p32": 4, "int5-p32": 5, "int6-p32": 6}  # and the bits of a weight
GROUPED = [name for name in INTEGERS if name not in SUB_SCALED]
SHAPES = [(16, 64), (1, 8), (33, 172), (40, 576), (17, 130), (64, 896)]
f32 = np.float32


def padded(k: int) -> int:
    return -(-k // 64) * 64


def weights(n: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((n, k)) * np.exp2(rng.integers(-8, 4, (n, 1)))
    w[0, : min(k, 64)] = 0  # a group whose scale is zero
    return w.astype(np.float32)


def pack(fmt: str, w: np.ndarray, **options: object) -> np.ndarray:
    panels = -(-len(w) // 16)
    out = np.full(panels * native.panel_bytes(fmt, w.shape[1]), 0xA5, np.uint8)
    packer().pack(fmt, w, out, **options)
    return out.reshape(panels, -1)


def unpack(fmt: str, panels: np.ndarray, k: int) -> np.ndarray:
    return native.unpack(fmt, panels, 0, len(panels), k)


def rounded_bf16(w: np.ndarray) -> np.ndarray:
    bits = w.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("fmt", "k", "expected"),
    [
        ("f32", 100, 128 * 64),
        ("bf16", 100, 128 * 32),
        ("int8-row", 100, 64 + 128 * 16),
        ("int4-g64", 64, 64 + 512),
        ("int4-g64", 128, 64 + 1024),
        ("int4-g64", 172, 2 * 64 + 3 * 512),
        ("int4-g64", 576, 5 * 64 + 9 * 512),
        ("int4-g32", 576, 9 * (64 + 512)),
        ("int8-g32", 100, 2 * (64 + 1024)),
    ],
)
def test_panel_bytes_count_k_padded_to_64_and_whole_lines_of_scales(fmt: str, k: int, expected: int) -> None:
    assert native.panel_bytes(fmt, k) == expected
    assert expected % 64 == 0


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_float_panels_hold_the_values_with_outputs_in_lanes(n: int, k: int) -> None:
    w = weights(n, k)
    panels = pack("f32", w).view(np.float32).reshape(-1, padded(k), 16)
    matrix = panels.transpose(0, 2, 1).reshape(-1, padded(k))
    assert np.array_equal(matrix[:n, :k], w)
    assert not matrix[n:].any()
    assert not matrix[:, k:].any()
    pairs = pack("bf16", w).view(np.uint16).reshape(-1, padded(k) // 2, 16, 2)
    matrix16 = pairs.transpose(0, 2, 1, 3).reshape(-1, padded(k))
    assert np.array_equal(matrix16[:n, :k], rounded_bf16(w))
    assert not matrix16[n:].any()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int8_rows_have_one_scale_and_lines_of_four_inputs(n: int, k: int) -> None:
    w = weights(n, k)
    panels = pack("int8-row", w)
    amax = np.abs(w).max(axis=1)
    safe = np.where(amax < f32(2.0**-100), f32(1), amax)
    scale = panels[:, :64].copy().view(np.float32).reshape(-1)
    assert np.array_equal(scale[:n], np.where(amax < f32(2.0**-100), 0, safe / f32(127)))
    q = panels[:, 64:].reshape(len(panels), -1, 16, 4).transpose(0, 2, 1, 3).reshape(-1, padded(k)).astype(int) - 128
    assert np.array_equal(q[:n, :k], np.clip(np.rint(w * (f32(127) / safe)[:, None]), -127, 127))
    assert not q[n:].any()
    assert not q[:, k:].any()
    assert not scale[n:].any()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int8_groups_have_scales_in_halves_and_the_nearest_integers(n: int, k: int) -> None:
    w = np.zeros((-(-n // 16) * 16, padded(k)), np.float32)
    w[:n, :k] = weights(n, k)
    groups = w.reshape(len(w), -1, 32)
    halves = (np.abs(groups).max(axis=2) / f32(127)).astype(np.float16)
    scale = halves.astype(np.float32)[:, :, None]
    inverse = np.where(scale == 0, 0, f32(1) / np.where(scale == 0, f32(1), scale))
    q = np.rint(np.clip(groups * inverse, -127, 127)).reshape(len(w), -1)
    panels = pack("int8-g32", w[:n, :k]).reshape(-1, padded(k) // 64, 64 + 1024)
    stored = np.ascontiguousarray(panels[:, :, :64]).view(np.float16).reshape(len(panels), -1, 16)  # (panel, group, n)
    assert np.array_equal(stored.swapaxes(1, 2).reshape(len(w), -1), halves)
    lines = panels[:, :, 64:].reshape(len(panels), -1, 16, 4).astype(int) - 128
    assert np.array_equal(lines.transpose(0, 2, 1, 3).reshape(len(w), -1), q)


def int4_model(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rule for groups x (groups, size): returns q and the fp16 scales, by plain float32 steps."""

    def evaluate(wanted: np.ndarray) -> tuple[np.ndarray, ...]:
        with np.errstate(over="ignore"):
            half = wanted.astype(np.float16)
        scale = half.astype(np.float32)
        inverse = np.where(scale == 0, f32(0), f32(1) / np.where(scale == 0, f32(1), scale))
        q = np.rint(np.clip(x * inverse[:, None], -8, 7))
        sums = np.zeros((3, len(x)), np.float32)
        for i in range(x.shape[1]):
            difference = x[:, i] - scale * q[:, i]
            sums += np.stack([difference * difference, x[:, i] * q[:, i], q[:, i] * q[:, i]])
        return q, half, *sums

    extreme = x[np.arange(len(x)), np.abs(x).argmax(axis=1)]
    best = evaluate(extreme / f32(-8))

    def keep_better(fresh: tuple[np.ndarray, ...], usable: np.ndarray) -> tuple[np.ndarray, ...]:
        better = usable & (fresh[2] < best[2])
        return tuple(
            np.where(better[:, None] if new.ndim == 2 else better, new, old)
            for new, old in zip(fresh, best, strict=True)
        )

    for divisor in (-7.5, -8.5, -9.0, -9.5, 7.0):
        best = keep_better(evaluate(extreme / f32(divisor)), np.ones(len(x), bool))
    usable = best[4] > 0
    best = keep_better(evaluate(best[3] / np.where(usable, best[4], f32(1))), usable)
    return best[0], best[1]


@pytest.mark.parametrize("size", [64, 32])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_int4_follows_the_written_rule_bit_for_bit(size: int, n: int, k: int) -> None:
    w = weights(n, k)
    fmt = f"int4-g{size}"
    matrix = np.zeros((n, padded(k)), np.float32)
    matrix[:, :k] = w
    q, scale = int4_model(matrix.reshape(-1, size))
    values = q.reshape(n, -1, size) * scale.astype(np.float32).reshape(n, -1, 1)
    assert np.array_equal(unpack(fmt, pack(fmt, w), k)[:n], values.reshape(n, -1)[:, :k])


def test_int4_g64_nibbles_and_scales_lie_where_the_format_says() -> None:
    k = 192  # one whole superblock and a half one
    w = np.zeros((16, k), np.float32)
    for n in range(16):
        w[n] = (np.arange(k) * 7 + n) % 16 - 8  # every group holds -8, so the scale is 1 and q is the value
    panel = pack("int4-g64", w)[0]
    assert len(panel) == 2 * 64 + 3 * 512
    assert panel[:64].view(np.float16).tolist() == [1.0] * 32
    tail = 64 + 1024
    assert panel[tail : tail + 32].view(np.float16).tolist() == [1.0] * 16
    assert not panel[tail + 32 : tail + 64].any()  # the line of scales stays whole
    for group, start in [(0, 64), (1, 64 + 512), (2, tail + 64)]:
        for line in range(8):
            for n in range(16):
                for j in range(4):
                    byte = int(panel[start + 64 * line + 4 * n + j])
                    assert (byte & 15) - 8 == w[n, 64 * group + 4 * line + j]
                    assert (byte >> 4) - 8 == w[n, 64 * group + 4 * (line + 8) + j]


def test_int4_g32_nibbles_pair_inputs_sixteen_apart() -> None:
    w = np.zeros((16, 64), np.float32)
    w[:] = (np.arange(64) * 5 + np.arange(16)[:, None]) % 16 - 8
    panel = pack("int4-g32", w)[0]
    for group in range(2):
        for line in range(4):
            for n in range(16):
                for j in range(4):
                    byte = int(panel[64 + 256 * group + 64 * line + 4 * n + j])
                    assert (byte & 15) - 8 == w[n, 32 * group + 4 * line + j]
                    assert (byte >> 4) - 8 == w[n, 32 * group + 4 * (line + 4) + j]


@pytest.mark.parametrize("fmt", FORMATS)
def test_threads_strides_and_panel_steps_do_not_change_a_panel(fmt: str) -> None:
    w = weights(70, 200)
    expected = pack(fmt, w)
    assert np.array_equal(pack(fmt, w, threads=3), expected)
    wide = np.full((140, 230), np.nan, np.float32)
    wide[::2, 7:207] = w
    assert np.array_equal(pack(fmt, wide[::2, 7:207]), expected)
    size = native.panel_bytes(fmt, 200)
    out = np.full(64 + 11 * size, 0xA5, np.uint8)
    packer().pack(fmt, w, out, out_offset=64, first_panel=2, panel_step=2)
    panels = out[64:].reshape(11, size)
    assert np.array_equal(panels[2:11:2], expected)
    assert np.all(panels[[0, 1, 3, 5, 7, 9]] == 0xA5)
    assert np.all(out[:64] == 0xA5)
    restored = native.unpack(fmt, out, 64, 5, 200, first_panel=2, panel_step=2)
    assert np.array_equal(restored, unpack(fmt, expected, 200))


@pytest.mark.parametrize("fmt", FORMATS)
def test_half_precision_sources_give_what_their_float32_values_give(fmt: str) -> None:
    half = weights(20, 100).astype(np.float16)
    half[2, :5] = [6e-8, -6e-8, 6.1e-5, 65504, -0.0]  # subnormals and the largest value
    assert np.array_equal(pack(fmt, half), pack(fmt, half.astype(np.float32)))
    bits = rounded_bf16(weights(20, 100))
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(pack(fmt, bits, bf16=True), pack(fmt, wide))


@pytest.mark.parametrize(
    ("fmt", "bound"),
    [
        ("bf16", 2.0**-9),
        ("int8-row", 0.01),
        ("int8-g32", 0.006),
        ("int4-g64", 0.1),
        ("int4-g32", 0.09),
        ("int4-p32", 0.082),
        ("int5-p32", 0.043),
        ("int6-p32", 0.024),
        ("int4-a256", 0.075),
        ("int4-a128", 0.075),
    ],
)
def test_relative_error_on_normal_weights_stays_small(fmt: str, bound: float) -> None:
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    error = unpack(fmt, pack(fmt, w), 512) - w
    assert np.sqrt((error**2).mean() / (w**2).mean()) < bound


@pytest.mark.parametrize("fmt", GROUPED)
def test_integers_use_the_range_of_their_descriptor_and_one_scale_for_each_of_its_groups(fmt: str) -> None:
    described = native.weight_format(fmt)
    low, high = described.lowest, described.highest
    w = np.random.default_rng(5).standard_normal((16, 128)).astype(np.float32)
    w[:, ::32] = 5  # far from the others: at an end of the range
    w[:, 1::32] = 5 * 126 / 127  # in 8 bits the next code
    for group in unpack(fmt, pack(fmt, w), 128).reshape(-1, described.group):
        steps = np.diff(np.unique(group)).min()
        codes = np.rint(group / steps).astype(int)  # but for a sign, which is the scale's
        assert np.allclose(codes * steps, group, rtol=1e-5)
        assert np.ptp(codes) <= high - low
        assert np.abs(codes).max() in (-low, high)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(fmt: str, value: float) -> None:
    w = weights(40, 130)
    w[18, 129] = w[33, 1] = value
    with pytest.raises(native.NativeError, match="row 18, column 129 is NaN or infinite") as caught:
        pack(fmt, w, threads=2)
    assert caught.value.code == "not_finite"
    with pytest.raises(native.NativeError, match="row 18, column 129"):
        pack(fmt, w.astype(np.float16))
    with pytest.raises(native.NativeError, match="row 18, column 129"):
        pack(fmt, (w.view(np.uint32) >> 16).astype(np.uint16), bf16=True)


def test_scales_that_fp16_cannot_hold_are_refused_and_the_last_that_it_can_is_kept() -> None:
    w = np.zeros((20, 128), np.float32)
    w[17, 64:] = 600_000
    with pytest.raises(
        native.NativeError, match="row 17, columns from 64: values too large for an fp16 scale"
    ) as caught:
        pack("int4-g64", w)
    assert caught.value.code == "out_of_range"
    w[17, 64:] = 500_000
    assert np.allclose(unpack("int4-g64", pack("int4-g64", w), 128)[17, 64:], 500_000, rtol=1e-3)
    assert np.allclose(unpack("int8-g32", pack("int8-g32", w), 128)[17, 64:], 500_000, rtol=1e-3)
    w[17, 64:] = 127 * 65520.0
    with pytest.raises(native.NativeError, match="row 17, columns from 64: values too large for an fp16 scale"):
        pack("int8-g32", w)
    w[17, 64:] = 3.4e38
    with pytest.raises(native.NativeError, match="too large for bf16"):
        pack("bf16", w)


def test_tiny_weights_become_zero_instead_of_noise() -> None:
    w = np.full((16, 64), 1e-31, np.float32)
    for fmt in INTEGERS:
        assert not unpack(fmt, pack(fmt, w), 64).any()


@pytest.mark.parametrize(("fmt", "bits"), SUB_SCALED.items())
def test_lone_weights_lie_where_the_format_says(fmt: str, bits: int) -> None:
    w = np.zeros((16, 192), np.float32)  # a superblock and a half
    w[3, 0], w[3, 101], w[7, 190] = 127, 12, -127
    panel = pack(fmt, w)[0]
    assert len(panel) == native.panel_bytes(fmt, 192) == 64 + 2 * 64 + 6 * 64 * bits
    d, lines = panel[:64].view(f32), panel[64:].reshape(-1, 64)
    assert [n for n in range(16) if d[n]] == [3, 7]
    # Input 0: the first quarter's sub-scale is byte 0, the unit is in line 1 and, above the nibbles, in line 5.
    # Input 101 = 3 * 32 + 5: byte 3 of the sub-scales, second line of the quarter, byte 1 of the output.
    # Input 190 = 128 + 32 + 30: byte 2 of the second superblock, line 7 % 4 of the quarter in high nibbles, byte 2.
    for output, quarter, input_, sign in ((3, 0, 0, 1), (3, 3, 5, 1), (7, 5, 30, -1)):
        block = quarter // 4 * (1 + 4 * bits)
        sub = int(lines[block, 4 * output + [0, 2, 1, 3][quarter % 4]])
        s, z = sub % 2 ** (8 - bits) + 1, sub >> 8 - bits
        own = lines[block + 1 + quarter % 4 * bits :][:bits, 4 * output + input_ % 4].astype(int)
        line = input_ // 4
        u = own[line % 4] >> 4 * (line // 4) & 15
        if bits == 5:
            u += 16 * (own[4] >> line & 1)
        if bits == 6:
            u += 16 * (own[4 + line // 4] >> 2 * (line % 4) & 3)
        got = unpack(fmt, panel[None], 192)[output, 32 * quarter + input_]
        assert got == f32(s * (u - z)) * d[output] and np.sign(got) == sign
        assert got == pytest.approx(w[output, 32 * quarter + input_], rel=0.2)


@pytest.mark.parametrize(("fmt", "bits"), SUB_SCALED.items())
def test_a_weight_that_is_no_int8_under_its_sub_scale_is_refused_with_its_place(fmt: str, bits: int) -> None:
    panels = pack(fmt, np.zeros((40, 172), np.float32))
    native.check_panels(fmt, panels, 0, 3, 172, threads=2)
    superblock = panels[1, 64 + 64 * (1 + 4 * bits) :]  # inputs from 128 on
    superblock[4 * 5 + 2] = 0xFF  # output 5 of 16, inputs from 160: the largest s and z
    most = (2**bits - 1) * 2 ** (8 - bits)
    with pytest.raises(native.NativeError, match=f"row 21, column 160: the weight is -{most} steps") as caught:
        native.check_panels(fmt, panels, 0, 3, 172)
    assert caught.value.code == "out_of_range"
    panels[0, :4].view(f32)[0] = np.nan
    with pytest.raises(native.NativeError, match="row 0: the scale is nan"):
        native.check_panels(fmt, panels, 0, 3, 172)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "int3"}, "unknown weight format"),
        ({"source": np.zeros(8, np.float32)}, "must be a matrix"),
        ({"source": np.zeros((4, 0), np.float32)}, "no columns"),
        ({"source": np.zeros((4, 8))}, "float32, float16, or uint16"),
        ({"source": np.zeros((4, 8), ">f4")}, "float32, float16, or uint16"),
        ({"source": np.zeros((8, 4), np.float32).T}, "rows of the source must be contiguous"),
        ({"out": np.zeros(100, np.uint8)}, "holds 0 panels, too few"),
        ({"first_panel": 1}, "too few"),
        ({"out_offset": -64}, "inside the buffer"),
        ({"panel_step": 0}, "inside the buffer"),
    ],
)
def test_impossible_calls_are_refused(change: dict, message: str) -> None:
    call = {"format": "f32", "source": np.zeros((4, 8), np.float32), "out": np.zeros(4096, np.uint8), **change}
    positional = [call.pop("format"), call.pop("source"), call.pop("out")]
    with pytest.raises(native.NativeError, match=message):
        packer().pack(*positional, **call)
