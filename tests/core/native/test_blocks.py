"""Whole cache blocks as bytes: read between steps, and written to other blocks alone."""

import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest

from infeng_core import _native

_spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)

TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, tiny.VOCAB, 40)]


def ids(*blocks):
    return np.array(blocks, np.int32)


@pytest.fixture
def model(reference):
    return tiny.Tiny(_native.Pool(2), reference, "int8-row", "int8")


@pytest.fixture
def cache():
    """A cache of 3 layers and 5 blocks in which no two blocks are alike."""
    cache = _native.KvCache("f32", layers=3, blocks=5, kv_heads=2, head_dim=80)
    for index in range(3):
        layer = cache.layer(index)
        layer[:] = np.random.default_rng(index).integers(0, 256, layer.shape, np.uint8)
    return cache


def block_of(cache, block):
    return np.concatenate([cache.layer(index)[block].reshape(-1) for index in range(3)])


def test_a_block_is_its_part_of_every_layer(model, cache):
    data = model.program.read_blocks(cache, ids(3, 0))
    assert (data.dtype, data.shape) == (np.uint8, (2, cache.block_bytes))
    assert np.array_equal(data, [block_of(cache, 3), block_of(cache, 0)])


def test_written_blocks_hold_what_was_read_and_the_others_what_they_held(model, cache):
    before = [block_of(cache, block) for block in range(5)]
    data = model.program.read_blocks(cache, ids(3, 0))
    model.program.write_blocks(cache, ids(1, 4), data)
    after = [block_of(cache, block) for block in range(5)]
    assert np.array_equal(after, [before[0], before[3], before[2], before[3], before[0]])


def test_rows_may_lie_apart(model, cache):
    records = np.zeros((2, cache.block_bytes + 192), np.uint8)
    records[:, 192:] = [block_of(cache, 3), block_of(cache, 2)]
    model.program.write_blocks(cache, ids(0, 1), records[:, 192:])
    assert np.array_equal([block_of(cache, 0), block_of(cache, 1)], records[:, 192:])


def test_blocks_are_copied_in_order(model, cache):
    before = [block_of(cache, block) for block in range(5)]
    model.program.copy_blocks(cache, ids(0, 1, 3), ids(1, 2, 3))
    assert np.array_equal([block_of(cache, block) for block in range(5)], [before[0]] * 3 + before[3:])


def test_reading_no_blocks_gives_no_bytes(model, cache):
    assert model.program.read_blocks(cache, ids()).shape == (0, cache.block_bytes)
    model.program.write_blocks(cache, ids(), np.zeros((0, cache.block_bytes), np.uint8))
    model.program.copy_blocks(cache, ids(), ids())


@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1])
def test_a_block_that_does_not_exist_is_an_error_before_anything_is_written(model, cache, expect, wrong):
    before = [block_of(cache, block) for block in range(5)]
    with expect("invalid_argument", f"no block {wrong}"):
        model.program.read_blocks(cache, ids(0, wrong))
    with expect("invalid_argument", f"no block {wrong}"):
        model.program.write_blocks(cache, ids(0, wrong), np.zeros((2, cache.block_bytes), np.uint8))
    with expect("invalid_argument", f"no block {wrong}"):
        model.program.copy_blocks(cache, ids(0, 1), ids(1, wrong))
    assert np.array_equal([block_of(cache, block) for block in range(5)], before)


def test_arrays_of_another_shape_or_type_are_errors(model, cache, expect):
    size = cache.block_bytes
    for data in (
        np.zeros((1, size), np.uint8),
        np.zeros((2, size - 1), np.uint8),
        np.zeros(2 * size, np.uint8),
        np.zeros((2, size), np.int8),
        np.zeros((2, 2 * size), np.uint8)[:, ::2],
    ):
        with expect("invalid_argument", "data"):
            model.program.write_blocks(cache, ids(0, 1), data)
    for blocks in (np.zeros(2, np.int64), np.zeros((1, 2), np.int32), np.zeros(4, np.int32)[::2]):
        with expect("invalid_argument", "blocks"):
            model.program.read_blocks(cache, blocks)
    with expect("invalid_argument", "2 blocks to copy to 1"):
        model.program.copy_blocks(cache, ids(0, 1), ids(2))


def test_a_sequence_continues_in_restored_blocks_with_the_same_bytes(reference):
    table = [7, 2, 11]
    expected = tiny.Tiny(_native.Pool(2), reference, "int8-row", "int8").run((TOKENS, 0, table))[32:]
    first = tiny.Tiny(_native.Pool(2), reference, "int8-row", "int8")
    first.run((TOKENS[:32], 0, table[:2]))
    data = first.program.read_blocks(first.cache, ids(7, 2))
    second = tiny.Tiny(_native.Pool(2), reference, "int8-row", "int8")
    second.program.write_blocks(second.cache, ids(4, 9), data)
    assert np.array_equal(second.run((TOKENS[32:], 32, [4, 9, 1])), expected)


def test_continuing_in_a_copied_block_does_not_change_the_original(reference):
    model = tiny.Tiny(_native.Pool(2), reference)
    expected = model.run((TOKENS, 0, [0, 1, 2]))[24:]
    model.run((TOKENS[:24], 0, [3, 4]))
    model.program.copy_blocks(model.cache, ids(4), ids(5))
    other = model.run(([1, 2, 3], 24, [3, 5]))
    assert np.array_equal(model.run((TOKENS[24:], 24, [3, 4, 6])), expected)
    assert not np.array_equal(other, expected[:3])


def test_blocks_are_copied_between_steps_while_another_thread_runs_them(model):
    """A block that steps write and others copy is whole in every copy."""
    model.run((TOKENS[:16], 0, [0]))
    first = model.program.read_blocks(model.cache, ids(0))
    model.run((TOKENS[16:32], 0, [0]))
    second = model.program.read_blocks(model.cache, ids(0))
    done = threading.Event()

    def steps():
        for step in range(200):
            model.run((TOKENS[16:32] if step % 2 else TOKENS[:16], 0, [0]))
        done.set()

    thread = threading.Thread(target=steps)
    thread.start()
    seen = set()
    while not done.is_set():
        copy = model.program.read_blocks(model.cache, ids(0))
        seen |= {n for n, whole in enumerate((first, second)) if np.array_equal(copy, whole)}
        assert np.array_equal(copy, first) or np.array_equal(copy, second)
    thread.join()
    assert seen
