"""Packed weights mean what docs/format.md says they mean, and are as near to their source as the format allows."""

from __future__ import annotations

import numpy as np
import pytest
from goldens import panels
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.formats.packing import packer

SUB_SCALED = {"int4-p32": 4, "int5-p32": 5, "int6-p32": 6}  # and the bits of a weight
AFFINE = {"int4-a256": 256, "int4-a128": 128}  # and the inputs of a superblock
FORMATS = ("f32", "bf16", "int8-row", "int4-g64", "int4-g32", *SUB_SCALED, "int8-g32", *AFFINE)
SIZES = [(1, 8), (16, 64), (17, 72), (40, 128), (33, 172), (48, 576), (5, 897)]


def packed(format: str, source: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the panels of ``source`` (n, k) as (panels, bytes)."""
    count, size = -(-len(source) // 16), _native.panel_bytes(format, source.shape[1])
    arena = _native.Arena(count * size, huge_pages=False)
    packer().pack(format, source, arena)
    return np.frombuffer(arena, np.uint8)[: count * size].reshape(count, size).copy()


def source(n: int, k: int) -> NDArray[np.float32]:
    """Return weights whose rows differ in size a hundredfold, with a row and a group of zeros."""
    random = np.random.RandomState(n * 1000 + k)
    weights = random.standard_normal((n, k)) * np.geomspace(0.01, 1, n)[:, None]
    weights[n // 2] = 0
    weights[-1, :64] = 0
    return weights.astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_the_core_reads_panels_as_docs_format_describes_them(format: str, n: int, k: int) -> None:
    data = packed(format, source(n, k))
    ours = panels.read(format, data, k)  # (panels * 16, k)
    arena = _native.Arena(data.nbytes, huge_pages=False)
    np.frombuffer(arena, np.uint8)[: data.nbytes] = data.ravel()
    theirs = _native.unpack(format, arena, 0, len(data), k)
    np.testing.assert_array_equal(ours.astype(np.float32), theirs)
    assert not ours[n:].any()


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_packed_weights_are_within_half_a_step(n: int, k: int) -> None:
    weights = source(n, k).astype(np.float64)
    got = {format: panels.read(format, packed(format, source(n, k)), k)[:n] for format in FORMATS}
    np.testing.assert_array_equal(got["f32"], weights)
    assert (np.abs(got["bf16"] - weights) <= np.abs(weights) * 2.0**-8).all()
    row_step = np.abs(weights).max(axis=1, keepdims=True) / 127  # (n, 1)
    assert (np.abs(got["int8-row"] - weights) <= row_step * (0.5 + 1e-4)).all()
    for begin in range(0, k, 32):
        group = weights[:, begin : begin + 32]
        most = np.abs(group).max(axis=1, keepdims=True).astype(np.float32)
        step = (most / np.float32(127)).astype(np.float16).astype(np.float64)
        nearest = np.clip(np.rint(group / np.where(step == 0, 1, step)), -127, 127) * step
        error = np.abs(got["int8-g32"][:, begin : begin + 32] - group)
        assert (error <= np.abs(nearest - group) + step * 1e-4).all()
    for format, size in (("int4-g64", 64), ("int4-g32", 32)):
        for begin in range(0, k, size):
            group = slice(begin, begin + size)
            error = ((got[format][:, group] - weights[:, group]) ** 2).sum(axis=1)  # (n,)
            for levels in (7, -8):
                plain = ((plain_int4(weights[:, group], levels) - weights[:, group]) ** 2).sum(axis=1)  # (n,)
                assert (error <= plain * (1 + 1e-5) + 1e-14).all()


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("format", SUB_SCALED)
def test_sub_scaled_weights_have_no_more_error_than_a_plain_choice_of_scales(format: str, n: int, k: int) -> None:
    weights = source(n, k).astype(np.float64)
    got = panels.read(format, packed(format, source(n, k)), k)[:n]
    error = ((got - weights) ** 2).sum(axis=1)  # (n,)
    plain = ((plain_sub_scaled(weights, SUB_SCALED[format]) - weights) ** 2).sum(axis=1)
    assert (error <= plain * (1 + 1e-5) + 1e-14).all()


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("format", AFFINE)
def test_weights_with_minima_have_no_more_error_than_full_range_groups(format: str, n: int, k: int) -> None:
    weights = source(n, k).astype(np.float64)
    got = panels.read(format, packed(format, source(n, k)), k)[:n]
    error, plain = ((got - weights) ** 2).sum(), ((plain_affine(weights, AFFINE[format]) - weights) ** 2).sum()
    assert error <= plain * 1.001 + 1e-14  # by bytes a step that was searched becomes a neighbour
    if n * k > 1000:
        assert error < plain * 0.95


def plain_affine(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Round (n, k): 15 steps from the least of 32 inputs to the largest, zero among them, as bytes of the largest."""
    rounded = np.zeros_like(weights)
    for begin in range(0, weights.shape[1], size):
        block = weights[:, begin : begin + size]
        groups = [block[:, at : at + 32] for at in range(0, block.shape[1], 32)]
        least = np.stack([-np.minimum(group.min(axis=1), 0) for group in groups], axis=1)  # (n, groups)
        step = np.stack([np.maximum(group.max(axis=1), 0) for group in groups], axis=1) + least
        step, least = as_bytes(step / 15), as_bytes(least)
        for i, group in enumerate(groups):
            by, from_ = step[:, i : i + 1], least[:, i : i + 1]
            u = np.clip(np.rint((group + from_) / np.where(by == 0, 1, by)), 0, 15)
            rounded[:, begin + 32 * i : begin + 32 * i + group.shape[1]] = by * u - from_
    return rounded


def as_bytes(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round (n, groups) to multiples of a 255th of the largest of a row."""
    unit = values.max(axis=1, keepdims=True) / 255
    return np.rint(values / np.where(unit == 0, 1, unit)) * unit


def plain_sub_scaled(weights: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Round (n, k): the row's scale is its largest magnitude / 127, s and z of 32 inputs span their range and zero."""
    most, largest = 2**bits - 1, 2 ** (8 - bits)
    d = np.abs(weights).max(axis=1, keepdims=True) / 127  # (n, 1)
    d[d == 0] = 1
    rounded = np.zeros_like(weights)
    for begin in range(0, weights.shape[1], 32):
        steps = weights[:, begin : begin + 32] / d  # in units of d
        low, high = np.minimum(steps.min(axis=1), 0)[:, None], np.maximum(steps.max(axis=1), 0)[:, None]  # (n, 1)
        s = np.clip(np.rint((high - low) / most), 1, largest)
        z = np.clip(np.rint(-low / s), 0, most)
        u = np.clip(np.rint(steps / s) + z, np.maximum(0, z - 128 // s), np.minimum(most, z + 127 // s))
        rounded[:, begin : begin + 32] = s * (u - z) * d
    return rounded


def plain_int4(weights: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Round (n, group) to q * scale, where the largest value of a row, with its sign, is ``levels`` steps."""
    at = np.abs(weights).argmax(axis=1)
    extreme = weights[np.arange(len(weights)), at][:, None]  # (n, 1)
    scale = (extreme / levels).astype(np.float16).astype(np.float64)
    steps = np.divide(weights, scale, out=np.zeros_like(weights), where=scale != 0)
    return np.clip(np.rint(steps), -8, 7) * scale
