"""Requests with equal beginnings share cache blocks, and their bytes are the same as without sharing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from adapter_parts import until
from engine_parts import MakeEngine

from infeng_core import Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
SAMPLED = replace(GREEDY, temperature=0.9, seed=7)
COMMON = [5 + i % 40 for i in range(50)]
PROMPTS: list[Any] = [COMMON, [*COMMON, 6, 7], [*COMMON[:40], 9], COMMON[:16], COMMON[:17], [8], COMMON]


def facts(completions: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.text, one.logprobs, one.finish_reason) for one in completions]


def every_cache() -> Iterator[Any]:
    """Yield a drafter and a cache: guesses over two caches, over more of them in the slow suite and at night."""
    for speculate, dtype in itertools.product(("none", "ngram"), ("int8", "f16", "f32", "int4h", "int8i", "int4hi")):
        is_usual = speculate == "none" or dtype in ("int8", "int4h", "int8i")
        yield pytest.param(speculate, dtype, marks=() if is_usual else pytest.mark.slow)
    for speculate, dtype in itertools.product(("none", "ngram"), ("int8h", "k8v4h", "fp8h", "int8hi", "k8v4hi")):
        yield pytest.param(speculate, dtype, marks=pytest.mark.nightly)


@pytest.mark.parametrize(("speculate", "dtype"), list(every_cache()))
def test_the_prefix_cache_changes_no_byte(make_engine: MakeEngine, tmp_path: Path, dtype: str, speculate: str):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    settings = {"adapters__paths": paths, "kv_cache__dtype": dtype, "speculation__use": speculate}
    with_it, without = (make_engine(kv_cache__prefix=prefix, **settings) for prefix in (True, False))
    names = [None, "a", "b", None, "a", "b", "a"]
    for params in (GREEDY, SAMPLED):
        for _ in range(2):
            found, expected = (one.generate(PROMPTS, params, adapters=names) for one in (with_it, without))
            assert facts(found) == facts(expected)
    assert sum(one.usage.cached_tokens for one in found) == 48 + 48 + 32 + 0 + 16 + 0 + 48
    assert all(one.usage.cached_tokens == 0 for one in expected)


def test_only_whole_blocks_are_shared_and_one_token_is_always_computed(make_engine: MakeEngine):
    engine = make_engine()
    counts = [engine.generate([COMMON[:length]], GREEDY)[0].usage.cached_tokens for length in (32, 32, 33, 48, 49)]
    assert counts == [0, 16, 32, 32, 48]


def test_generated_tokens_are_shared_as_well(make_engine: MakeEngine):
    engine = make_engine()
    params = replace(GREEDY, max_tokens=40)
    first = engine.generate([COMMON], params)[0]
    turn = [*COMMON, *first.token_ids, 5, 6, 7]
    again = engine.generate([turn], params)[0]
    assert again.usage.cached_tokens == 80
    assert facts([again]) == facts(make_engine(kv_cache__prefix=False).generate([turn], params))


def test_another_adapter_weight_or_salt_shares_nothing(make_engine: MakeEngine, tmp_path: Path):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    paths["copy"] = str(tiny_adapter.write(tmp_path / "copy", 0))
    engine = make_engine(adapters__paths=paths)
    engine.adapters.load("louder", paths["a"], scale=2.0)

    def cached(adapter: Any, salt: str = "") -> int:
        request = Request(tuple(COMMON), GREEDY, adapter=adapter, cache_salt=salt)
        return engine.submit(request).result().usage.cached_tokens

    ways: list[tuple[Any, str]] = [
        *((adapter, "") for adapter in (None, "a", "b", "louder", (("a", 0.5),), (("a", 1.0), ("b", 1.0)))),
        ((("b", 1.0), ("a", 1.0)), ""),
        (None, "tenant"),
        ("a", "tenant"),
    ]
    assert [cached(*way) for way in ways] == [0] * len(ways)
    assert [cached(*way) for way in ways] == [48] * len(ways)
    assert cached("copy") == 48, "equal contents are the same adapter"


def test_a_reloaded_adapter_does_not_find_blocks_of_its_old_contents(make_engine: MakeEngine, tmp_path: Path):
    path = tiny_adapter.write(tmp_path / "a", 1)
    engine = make_engine(adapters__paths={"a": str(path)})
    engine.generate([COMMON], GREEDY, adapters="a")
    tiny_adapter.write(path, 2)
    engine.adapters.reload("a")
    found = engine.generate([COMMON], GREEDY, adapters="a")[0]
    assert found.usage.cached_tokens == 0
    fresh = make_engine(adapters__paths={"a": str(path)})
    assert facts([found]) == facts(fresh.generate([COMMON], GREEDY, adapters="a"))


def test_prompt_logprobs_cover_every_token_despite_cached_blocks(make_engine: MakeEngine):
    engine = make_engine()
    params = replace(GREEDY, prompt_logprobs=1)
    expected = make_engine(kv_cache__prefix=False).generate([COMMON], params)[0]
    engine.generate([COMMON], GREEDY)
    found = engine.generate([COMMON], params)[0]
    assert found.prompt_logprobs == expected.prompt_logprobs
    assert engine.score(COMMON[:40], COMMON[40:]) == make_engine().score(COMMON[:40], COMMON[40:])


def test_a_score_shares_blocks_only_under_its_own_salt(make_engine: MakeEngine):
    engine = make_engine()

    def found(salt: str) -> int:
        before = engine.scheduler.prefix_hits
        engine.score(Request(tuple(COMMON[:40]), cache_salt=salt), COMMON[40:])
        return engine.scheduler.prefix_hits - before

    assert [found(salt) for salt in ("", "a", "b")] == [0, 0, 0]
    assert [found(salt) for salt in ("", "a", "b")] == [32, 32, 32]
    asked = engine.submit(Request(tuple(COMMON), GREEDY, cache_salt="a"))
    assert asked.result().usage.cached_tokens == 48


def test_a_prefix_is_not_shared_before_its_step_has_committed(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_batch_tokens=8)
    first = engine.submit([*COMMON, 6], GREEDY)
    engine.step()
    second = engine.submit([*COMMON, 7], GREEDY)
    expected = make_engine(kv_cache__prefix=False).generate([[*COMMON, 6], [*COMMON, 7]], GREEDY)
    assert facts([first.result(), second.result()]) == facts(expected)


def test_prefixes_are_evicted_when_room_is_needed(make_engine: MakeEngine):
    block = make_engine().executable.kv_bytes // make_engine().limits.kv_blocks
    engine = make_engine(kv_cache__memory=10 * block)
    for seed in range(12):
        prompt = [5 + seed] * 60
        assert engine.generate([prompt], GREEDY)[0].usage.cached_tokens == 0
    assert engine.scheduler.prefixes.tree.evictions > 0
    assert engine.scheduler.free_blocks == 10


def test_prefixes_outlive_the_engine(make_engine: MakeEngine, tmp_path: Path):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    settings = {"adapters__paths": paths, "kv_cache__prefix_dir": str(tmp_path / "prefixes")}
    names = [None, "a", "b"]
    with make_engine(**settings) as first:
        expected = first.generate([COMMON] * 3, GREEDY, adapters=names)
    for _ in range(2):
        with make_engine(**settings) as again:
            found = again.generate([COMMON] * 3, GREEDY, adapters=names)
            assert facts(found) == facts(expected)
            assert [one.usage.cached_tokens for one in found] == [48] * 3
            assert again.generate([COMMON], replace(GREEDY, prompt_logprobs=0))[0].usage.cached_tokens == 0
    with make_engine(**settings, kv_cache__dtype="f32") as other:
        assert other.generate([COMMON], GREEDY)[0].usage.cached_tokens == 0


def test_an_engine_with_its_own_thread_saves_prefixes_while_idle(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine(kv_cache__prefix_dir=str(tmp_path / "prefixes"))
    engine.start()
    expected = engine.generate([COMMON], GREEDY)
    until(lambda: any(path.stat().st_size for path in (tmp_path / "prefixes").glob("*.index")))
    other = make_engine(kv_cache__prefix_dir=str(tmp_path / "prefixes"))  # beside it
    found = other.generate([COMMON], GREEDY)
    assert facts(found) == facts(expected)
    assert found[0].usage.cached_tokens == 48


def test_a_damaged_prefix_is_computed_again(make_engine: MakeEngine, tmp_path: Path):
    directory = tmp_path / "prefixes"
    with make_engine(kv_cache__prefix_dir=str(directory)) as engine:
        expected = engine.generate([COMMON], GREEDY)
    [segment] = directory.glob("*.segment")
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    with make_engine(kv_cache__prefix_dir=str(directory)) as engine:
        found = engine.generate([COMMON], GREEDY)
    assert facts(found) == facts(expected)
    assert found[0].usage.cached_tokens < 48
