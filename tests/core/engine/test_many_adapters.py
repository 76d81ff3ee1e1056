"""A thousand adapters behind 32 places: bounded memory, nothing lost, every answer the right one."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
import tiny_adapter
from engine_parts import MakeEngine

from infeng_core import Engine, SamplingParams

ADAPTERS, PLACES, SWAPS = 1000, 32, 5000
PARAMS = SamplingParams(temperature=1.0, seed=1, max_tokens=4, ignore_eos=True)
MOST_GROWTH = 6 << 20  # bytes from the first thousand swaps to the last; an adapter here takes some 20 kB


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def answers(engine: Engine, names: list[str]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in engine.generate(["x"] * len(names), PARAMS, adapters=list(names))]


@pytest.mark.slow
def test_a_thousand_adapters_take_turns_in_32_places(make_engine: MakeEngine, tmp_path: Path):
    names = [f"n{seed}" for seed in range(ADAPTERS)]
    for seed, name in enumerate(names):
        tiny_adapter.write(tmp_path / name, seed, targets=("down_proj",), rank=2, strength=1.0)
    engine = make_engine(adapters__max_resident=PLACES, scheduler__max_running=48)
    for name in names:
        engine.load_adapter(name, tmp_path / name)
    assert all(info.state == "registered" for info in engine.adapters())

    alone = {name: answers(engine, [name])[0] for name in names}
    assert len(set(alone.values())) > ADAPTERS // 4, "they answer in different ways"
    before = rss()
    choose = random.Random(1)
    while engine._adapters.evictions < SWAPS:
        batch = choose.choices(names, k=96)
        assert answers(engine, batch) == [alone[name] for name in batch]
        infos = [info for info in engine.adapters() if info.state == "resident"]
        assert len(infos) <= PLACES
        assert all(info.references == info.waiting == 0 for info in infos)
    assert rss() - before < MOST_GROWTH
    assert len(engine._adapters._cache.residents) == PLACES

    other = make_engine(adapters__max_resident=1)
    for name in names[:20]:
        other.load_adapter(name, tmp_path / name)
        assert answers(other, [name])[0] == alone[name]
