"""Whole cache blocks of the backend as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from engine_parts import greedy
from goldens.shapes import BIASED
from infeng_numpy.backend import CACHES
from infeng_numpy.blocks import Blocks
from numpy.typing import NDArray

from infeng_core.api import KernelError
from infeng_core.api.engines import BlockAccess

NUMPY = {"backend.use": "numpy"}


def ids(*blocks: int) -> NDArray[np.int32]:
    return np.array(blocks, np.int32)


@pytest.fixture(params=sorted(CACHES))
def filled(request: pytest.FixtureRequest) -> Blocks:
    """Five blocks of 3 layers in which no two bytes of a block need be alike."""
    cache = CACHES[request.param](layers=3, slots=5 * 16, kv_heads=2, head_dim=8)
    random = np.random.default_rng(1)
    for array in cache.arrays:
        array.view(np.uint8)[:] = random.integers(0, 256, array.view(np.uint8).shape)
    blocks = Blocks(cache.arrays, 16)
    assert 5 * blocks.nbytes == cache.nbytes
    return blocks


def test_restored_blocks_equal_the_saved_ones_and_others_are_unchanged(filled: Blocks) -> None:
    before = filled.read(ids(0, 1, 2, 3, 4))
    assert len({row.tobytes() for row in before}) == 5
    filled.write(ids(1, 4), filled.read(ids(3, 0)))
    assert np.array_equal(filled.read(ids(0, 1, 2, 3, 4)), before[[0, 3, 2, 3, 0]])


def test_blocks_are_copied_in_order(filled: Blocks) -> None:
    before = filled.read(ids(0, 1, 2, 3, 4))
    filled.copy(ids(0, 1), ids(1, 2))
    assert np.array_equal(filled.read(ids(0, 1, 2, 3, 4)), before[[0, 0, 0, 3, 4]])


def test_wrong_block_ids_and_arrays_are_an_error_and_change_nothing(filled: Blocks) -> None:
    before = filled.read(ids(0, 1, 2, 3, 4))
    for wrong in (-1, 5):
        with pytest.raises(KernelError, match=f"no block {wrong}"):
            filled.read(ids(0, wrong))
        with pytest.raises(KernelError, match=f"no block {wrong}"):
            filled.write(ids(0, wrong), before[:2])
        with pytest.raises(KernelError, match=f"no block {wrong}"):
            filled.copy(ids(0, 1), ids(1, wrong))
    with pytest.raises(KernelError, match="2 blocks take uint8"):
        filled.write(ids(0, 1), before[:3])
    with pytest.raises(KernelError, match="blocks are int32"):
        filled.read(np.array([0, 1]))
    with pytest.raises(KernelError, match="2 blocks to copy to 1"):
        filled.copy(ids(0, 1), ids(2))
    assert np.array_equal(filled.read(ids(0, 1, 2, 3, 4)), before)


@pytest.mark.parametrize("kv", sorted(CACHES))
def test_a_request_continues_from_restored_blocks_with_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    monkeypatch.setenv("INFENG_CACHE", str(tmp_path))
    directory = BIASED.write(tmp_path / "model")
    prompt = [int(token) for token in BIASED.prompt[:40]]
    settings = {**NUMPY, "kv_cache.dtype": kv}
    with (
        harness.engine(directory, harness.F32, settings) as first,
        harness.engine(directory, harness.F32, settings) as second,
    ):
        assert isinstance(first.executable, BlockAccess)
        assert isinstance(second.executable, BlockAccess)
        expected = greedy(first.executable, prompt, 0, [5, 0, 3, 1], 8)
        data = first.executable.read_blocks(ids(5, 0))
        assert data.shape[1] == first.executable.kv_bytes // first.limits.kv_blocks
        second.executable.write_blocks(ids(2, 7), data)
        second.executable.copy_blocks(ids(7), ids(6))
        assert greedy(second.executable, prompt, 32, [2, 6, 4, 0], 8) == expected
        assert first.executable.block_layout() == second.executable.block_layout()
