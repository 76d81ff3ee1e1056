"""Cache blocks and their references, against a model that counts them in a dictionary."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from infeng_core.errors import ResourceError
from infeng_core.scheduling import blocks as module
from infeng_core.scheduling.blocks import BlockPool

TOTAL = 12


def ids(*blocks: int) -> NDArray[np.int32]:
    return np.array(blocks, np.int32)


@pytest.fixture(params=[0, 64], ids=["arrays", "loop"])
def few(request, monkeypatch):
    """Both ways: as for a few blocks, and as for many."""
    monkeypatch.setattr(module, "FEW", request.param)


class Watcher:
    """Follows what it hears; ``others`` are the blocks that have more than one holder."""

    def __init__(self) -> None:
        self.others: set[int] = set()

    def shared(self, blocks: list[int]) -> None:
        self.others.update(blocks)

    def alone(self, blocks: list[int]) -> None:
        self.others.difference_update(blocks)


calls = st.one_of(
    st.tuples(st.just("allocate"), st.integers(0, TOTAL + 1)),
    st.tuples(st.sampled_from(["retain", "release"]), st.lists(st.integers(-1, TOTAL), max_size=8)),
)


@pytest.mark.parametrize("few", [0, 64])
@settings(max_examples=examples(300), deadline=None)
@given(calls=st.lists(calls, max_size=40))
def test_every_block_has_as_many_references_as_allocations_less_releases(few, calls):
    pool, watcher, model = BlockPool(TOTAL), Watcher(), Counter[int]()
    pool.watcher = watcher
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW", few)
        for name, argument in calls:
            if name == "allocate":
                if argument > TOTAL - len(+model):
                    with pytest.raises(ResourceError, match="blocks wanted"):
                        pool.allocate(argument)
                    continue
                blocks = pool.allocate(argument)
                assert blocks.dtype == np.int32
                assert len(set(blocks.tolist())) == argument
                assert not any(model[block] for block in blocks.tolist()), "handed out twice"
                model.update(blocks.tolist())
                continue
            wanted = Counter(argument)
            if name == "retain":
                fits = all(model[block] > 0 for block in wanted)
            else:
                fits = all(model[block] >= count for block, count in wanted.items())
            if not fits:
                with pytest.raises(ValueError, match="block"):
                    getattr(pool, name)(ids(*argument))
            else:
                getattr(pool, name)(ids(*argument))
                (model.update if name == "retain" else model.subtract)(wanted)
            assert [pool.references(block) for block in range(TOTAL)] == [model[block] for block in range(TOTAL)]
            assert pool.free == TOTAL - len(+model)
            assert watcher.others == {block for block, count in model.items() if count > 1}


@pytest.mark.usefixtures("few")
def test_the_block_freed_last_is_allocated_first():
    pool = BlockPool(8)
    first, second = pool.allocate(3), pool.allocate(2)
    assert first.tolist() == [0, 1, 2]
    pool.release(first)
    pool.release(second)
    assert pool.allocate(2).tolist() == second.tolist()
    assert pool.allocate(3).tolist() == first.tolist()


@pytest.mark.usefixtures("few")
def test_a_shared_block_is_freed_by_its_last_holder():
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.retain(blocks[:1])
    pool.release(blocks)
    assert (pool.free, pool.references(0), pool.references(1)) == (3, 1, 0)
    pool.release(blocks[:1])
    assert pool.free == 4


@pytest.mark.usefixtures("few")
def test_a_block_that_is_named_twice_counts_twice_and_becomes_free_once():
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    pool.retain(blocks)
    pool.release(np.concatenate([blocks, blocks]))
    assert sorted(pool.allocate(4).tolist()) == [0, 1, 2, 3]


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("wrong", [[0, 0], [0, 1], [0, -4], [0, 4]])
def test_releasing_an_unheld_block_is_an_error_without_effect(wrong):
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(ValueError, match="block"):
        pool.release(ids(*wrong))
    assert (pool.free, pool.references(0)) == (3, 1)


@pytest.mark.usefixtures("few")
def test_a_free_block_cannot_be_retained():
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(ValueError, match="block"):
        pool.retain(ids(0, 1))
    assert pool.references(0) == 1


def test_a_count_below_zero_and_an_unknown_block_are_errors():
    with pytest.raises(ValueError, match="-1"):
        BlockPool(4).allocate(-1)
    with pytest.raises(ValueError, match="4 of 4"):
        BlockPool(4).references(4)
