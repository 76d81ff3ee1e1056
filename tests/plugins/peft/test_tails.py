"""Packing into int8t4: the decomposition keeps the product, and the rounding loses little of it."""

from typing import Any

import numpy as np
import pytest
from infeng_numpy.packed import unpack_stacked, unpack_tails
from infeng_peft.packing import pack_stacked
from infeng_peft.tails import TOP, TailFormat, decomposed, quantize_tails
from numpy.typing import NDArray

from infeng_core._native import NativeError
from infeng_core.formats.adapters.image import b_shape
from infeng_core.formats.adapters.stacked import stacked_bytes
from infeng_core.formats.floats import widened

Floats = NDArray[np.float32]


def product(rank: int, k: int, rows: int, *, falls: float = 0.5) -> tuple[Floats, Floats]:
    """Return random A and B whose ranks are worth less and less, in no order."""
    random = np.random.default_rng(rank + k)
    a = random.standard_normal((rank, k), dtype=np.float32)
    b = random.standard_normal((rows, rank), dtype=np.float32)
    return a, b * random.permutation((np.arange(rank) + 1.0) ** -falls).astype(np.float32)


def stored(a: Floats, b: Floats) -> Floats:
    """Return the product of A and B as they are stored."""
    rows, columns = decomposed(a, b)
    format = TailFormat()
    data = np.zeros(stacked_bytes(format, len(rows), rows.shape[1]), np.uint8)
    pack_stacked(format, rows, data)
    panels = np.ascontiguousarray(columns.reshape(-1, 16, len(rows)).transpose(0, 2, 1))
    out = np.zeros(b_shape("int8t4", len(panels), len(rows)), np.uint8)
    scales = widened(quantize_tails(panels, rows, out)).reshape(-1)
    found = unpack_tails(out).transpose(0, 2, 1).reshape(len(columns), -1) * scales[:, None]
    return found @ unpack_stacked(format, data, len(rows), rows.shape[1])


def loss(found: Floats, wanted: Floats) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("rank", [1, 4, 8, 12, 16, 64])
def test_a_decomposition_keeps_the_product_and_puts_what_matters_where_8_bits_are(rank: int) -> None:
    a, b = product(rank, 200, 144)
    rows, columns = decomposed(a, b)
    assert len(rows) == columns.shape[1] == -(-rank // 8) * 8
    assert loss(columns @ rows, b @ a) < 1e-6
    worth = np.linalg.norm(rows, axis=1) * np.linalg.norm(columns, axis=0)
    tops = worth[::8]
    assert (np.diff(tops) <= 0).all()
    assert tops.min() >= np.delete(worth, np.s_[::8]).max()
    lengths = np.linalg.norm(columns, axis=0)[worth > 0]
    assert np.allclose(lengths[::8] if rank > 8 else lengths[:1], TOP, rtol=1e-5)


def test_a_rank_above_a_side_of_the_matrix_is_kept() -> None:
    a, b = product(24, 16, 32)
    rows, columns = decomposed(a, b)
    assert rows.shape == (24, 16)
    assert loss(columns @ rows, b @ a) < 1e-6


@pytest.mark.parametrize(("rank", "k"), [(16, 512), (8, 512), (12, 300), (64, 512), (1, 100)])
def test_rounding_loses_little(rank: int, k: int) -> None:
    """Ranks of one weight each, the worst case, lose 15%; those of trained adapters fall off."""
    assert loss(stored(*product(rank, k, 256)), np.matmul(*reversed(product(rank, k, 256)))) < 0.12
    steep = product(rank, k, 256, falls=1.5)
    assert loss(stored(*steep), steep[1] @ steep[0]) < 0.05
    flat = product(rank, k, 256, falls=0.0)
    assert loss(stored(*flat), flat[1] @ flat[0]) < 0.16


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e12])
def test_the_loss_does_not_depend_on_the_size_of_numbers(scale: float) -> None:
    a, b = product(16, 256, 64)
    factor = np.float32(scale)
    assert abs(loss(stored(a * factor, b) / factor, b @ a) - loss(stored(a, b), b @ a)) < 0.01


def test_zeros_stay_zeros() -> None:
    a, b = product(16, 128, 64)
    assert not stored(a, np.zeros_like(b)).any()
    assert not stored(np.zeros_like(a), b).any()
    half: Any = b.copy()
    half[32:] = 0
    assert not stored(a, half)[32:].any()


def test_infinity_is_refused() -> None:
    rows = np.ones((16, 64), np.float32)
    rows[3, 5] = np.inf
    with pytest.raises(NativeError, match="scale is inf"):
        pack_stacked(TailFormat(), rows, np.zeros(TailFormat().panel_bytes(64), np.uint8))
