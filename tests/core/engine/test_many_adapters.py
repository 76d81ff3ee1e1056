"""Many adapters in little memory: it stays bounded, and every answer is the right one."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core import Engine, SamplingParams

PARAMS = SamplingParams(temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
MOST_GROWTH = 6 << 20  # bytes from the first thousand swaps to the last; an adapter here takes some 20 kB


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def answers(engine: Engine, names: list[str]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in engine.generate(["x"] * len(names), PARAMS, adapters=list(names))]


@pytest.mark.parametrize(
    ("count", "places", "swaps"),
    [
        pytest.param(200, 16, 1500, marks=pytest.mark.slow, id="200 in 16 places"),
        pytest.param(1000, 32, 5000, marks=pytest.mark.nightly, id="1000 in 32 places"),
    ],
)
def test_adapters_take_turns_in_few_places(
    count: int, places: int, swaps: int, make_engine: MakeEngine, tmp_path: Path
):
    names = [f"n{seed}" for seed in range(count)]
    for seed, name in enumerate(names):
        tiny_adapter.write(tmp_path / name, seed, targets=("down_proj",), rank=2, strength=1.0)
    engine = make_engine(adapters__max_resident=places, scheduler__max_running=48)
    for name in names:
        engine.adapters.load(name, tmp_path / name)
    assert all(info.state == "registered" for info in engine.adapters.infos())

    alone = {name: answers(engine, [name])[0] for name in names}
    assert len(set(alone.values())) > count // 4, "they answer in different ways"
    before = rss()
    choose = random.Random(1)
    while engine._registry.evictions < swaps:
        batch = choose.choices(names, k=96)
        assert answers(engine, batch) == [alone[name] for name in batch]
        infos = [info for info in engine.adapters.infos() if info.state == "resident"]
        assert len(infos) <= places
        assert all(info.references == info.waiting == 0 for info in infos)
    assert rss() - before < MOST_GROWTH
    assert len(engine._registry._cache.residents) == places

    other = make_engine(adapters__max_resident=1)
    for name in names[:20]:
        other.adapters.load(name, tmp_path / name)
        assert answers(other, [name])[0] == alone[name]
