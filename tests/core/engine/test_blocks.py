"""Cache blocks of an engine's executable: a request can continue from their bytes, also in another engine."""

from __future__ import annotations

import numpy as np
import pytest
from engine_parts import MakeEngine, greedy

from infeng_core import _native
from infeng_core.backends.interface import BlockAccess, Executable
from infeng_core.errors import KernelError

PROMPT = np.random.default_rng(3).integers(2, 300, 40).tolist()


def access(executable: Executable) -> BlockAccess:
    assert isinstance(executable, BlockAccess)
    return executable


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


@pytest.mark.parametrize("kv", _native.CACHE_FORMATS)
def test_a_request_continues_in_restored_blocks_with_the_same_tokens(make_engine: MakeEngine, kv: str):
    settings = {"kv_cache__dtype": kv, "kv_cache__memory": "1MB"}
    first, second = make_engine(**settings), make_engine(**settings)
    expected = greedy(first.executable, PROMPT, 0, [5, 0, 3, 1], 16)
    data = access(first.executable).read_blocks(ids(5, 0))
    assert data.nbytes == 2 * first.executable.kv_bytes // first.limits.kv_blocks
    access(second.executable).write_blocks(ids(2, 7), data)
    assert greedy(second.executable, PROMPT, 32, [2, 7, 4, 0], 16) == expected


def test_a_request_that_continues_in_a_copied_block_does_not_disturb_the_original(make_engine: MakeEngine):
    executable = make_engine(kv_cache__memory="1MB").executable
    expected = greedy(executable, PROMPT, 0, [0, 1, 2, 3], 20)
    begun = greedy(executable, PROMPT, 0, [0, 1, 2, 3], 4)  # 43 positions: block 2 has room
    access(executable).copy_blocks(ids(2), ids(4))
    greedy(executable, [*PROMPT, *begun[:3], 7], 43, [0, 1, 4, 5], 12)
    assert begun + greedy(executable, PROMPT + begun, 43, [0, 1, 2, 3], 16) == expected


def test_equal_layouts_have_interchangeable_blocks(make_engine: MakeEngine):
    layouts = [access(make_engine(kv_cache__dtype=kv).executable).block_layout() for kv in ("f32", "f16", "f32")]
    assert layouts[0] == layouts[2] != layouts[1]


def test_a_block_that_does_not_exist_is_a_kernel_error(make_engine: MakeEngine):
    engine = make_engine(kv_cache__memory="1MB")
    with pytest.raises(KernelError, match=f"no block {engine.limits.kv_blocks}: use blocks of this engine"):
        access(engine.executable).read_blocks(ids(engine.limits.kv_blocks))
