"""The layout of int8t4: panels and blocks return the numbers that were put into them."""

import numpy as np
import pytest
from infeng_numpy.packed import unpack_stacked, unpack_tails
from infeng_peft.tails import compressed, pack_b

from infeng_core.formats.adapters.image import b_shape
from infeng_core.formats.adapters.spec import A_FORMAT, stored_rank
from infeng_core.formats.adapters.stacked import stacked_bytes
from infeng_core.formats.adapters.tails import Tails, expanded
from infeng_core.formats.quant import BUILTIN

INT8 = BUILTIN["int8-row"]


def numbers(rows: int, k: int) -> np.ndarray:
    """Return random numbers of 8 bits in every eighth row, of 4 bits in the others."""
    random = np.random.default_rng(rows + k)
    q = random.integers(-8, 8, (rows, k)).astype(np.int8)
    q[::8] = random.integers(-127, 128, (len(q[::8]), k))
    return q


@pytest.mark.parametrize("k", [8, 64, 100, 192])
@pytest.mark.parametrize("panels", [1, 3])
def test_panels_return_their_numbers(panels: int, k: int) -> None:
    q, scales = numbers(16 * panels, k), np.random.default_rng(1).uniform(0.5, 2, (16 * panels, 1)).astype(np.float32)
    plain = np.empty(panels * INT8.panel_bytes(k), np.uint8)
    INT8.pack_codes(q, scales, plain)
    small = compressed(plain.reshape(panels, -1))
    assert small.shape == (panels, Tails().panel_bytes(k))
    assert np.array_equal(expanded(small).reshape(-1), plain)
    assert np.array_equal(Tails().unpack(small.reshape(-1), 0, panels, k), q * scales)
    if k == 192:
        assert small.nbytes < 0.58 * plain.nbytes


@pytest.mark.parametrize("rank", [0, 8, 24])
def test_blocks_of_b_return_their_numbers(rank: int) -> None:
    q = numbers(max(rank, 1), 5 * 16)[:rank].reshape(rank, 5, 16).transpose(1, 0, 2).copy()
    out = np.zeros(b_shape("int8t4", 5, rank), np.uint8)
    pack_b(q, out)
    assert np.array_equal(unpack_tails(out), q)
    assert out.nbytes == 5 * 9 * rank


@pytest.mark.parametrize(("rank", "stored"), [(0, 0), (1, 8), (8, 8), (9, 16), (256, 256)])
def test_ranks_are_stored_in_eights(rank: int, stored: int) -> None:
    assert stored_rank("int8t4", rank) == stored
    assert stored_rank("int8", rank) == rank


def test_a_folded_panel_is_half_as_long() -> None:
    format = A_FORMAT["int8t4"]
    assert stacked_bytes(format, 24, 256) == format.panel_bytes(256) + format.panel_bytes(128)
    data = np.random.default_rng(2).integers(0, 256, stacked_bytes(format, 24, 256), np.uint8)
    for begin in (0, format.panel_bytes(256)):
        data[begin : begin + 64] = np.ones(16, np.float32).view(np.uint8)
    rows = unpack_stacked(format, data, 24, 256)
    assert rows.shape == (24, 256)
    assert np.abs(rows[1:8]).max() == 8
    assert np.abs(rows[16]).max() > 100
