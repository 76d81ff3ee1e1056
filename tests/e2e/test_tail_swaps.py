"""Adapters in int8t4 take the place of each other, and are smaller than in int8."""

from pathlib import Path

import infeng_demo
import pytest

from infeng_core import Engine, SamplingParams

ADAPTERS = Path(infeng_demo.__file__).parent / "adapters"
NAMES = ("shakespeare", "python", "shakespeare-dora")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def engine(**settings: object) -> Engine:
    paths = {name: str(ADAPTERS / name) for name in NAMES}
    return Engine(infeng_demo.model_dir(), adapters=paths, overrides={f"adapters.{k}": v for k, v in settings.items()})


@pytest.mark.slow
def test_adapters_that_replace_each_other_give_the_tokens_of_a_mixed_batch() -> None:
    with engine(dtype="int8t4", max_resident=1) as swapping:
        alone = [swapping.generate("The king", GREEDY, adapters=name)[0].token_ids for name in NAMES * 2]
        assert [info.loads for info in swapping.adapters.infos()] == [2, 2, 2]
    assert alone[:3] == alone[3:]
    assert len({tuple(ids) for ids in alone}) == 3
    with engine(dtype="int8t4") as mixed:
        found = mixed.generate(["The king"] * 3, GREEDY, adapters=list(NAMES))
        assert [each.token_ids for each in found] == alone[:3]
        mixed.adapters.reload("python")
        assert mixed.generate("The king", GREEDY, adapters="python")[0].token_ids == alone[1]


@pytest.mark.slow
def test_rank_16_takes_less_than_six_tenths_of_int8() -> None:
    nbytes = {}
    for dtype in ("int8", "int8t4"):
        with engine(dtype=dtype) as loaded:
            loaded.adapters.pin("shakespeare")
            info = loaded.adapters["shakespeare"]
            assert info.rank == 16
            nbytes[dtype] = info.bytes
    assert nbytes["int8t4"] <= 0.6 * nbytes["int8"]
