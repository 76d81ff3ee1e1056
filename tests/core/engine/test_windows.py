"""Layers with a window keep only its blocks: the bytes equal those of an engine that keeps everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from engine_parts import MakeEngine, preempting

from infeng_core import SamplingParams
from infeng_core.engine import Engine
from infeng_core.scheduling.tables import Needs

WINDOW, CONTEXT, ROWS = 24, 512, 32

SHAPES: dict[str, dict[str, Any]] = {
    "all": {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
    "some": {
        "model_type": "ministral",
        "architectures": ["MinistralForCausalLM"],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
"""The layers with a window, of three: one group of blocks, or one for each layer."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2)
SAMPLED = replace(GREEDY, temperature=0.9, seed=7)
LONG = [5 + i * i % 91 for i in range(460)]
PROMPTS: list[Any] = [LONG, [*LONG[:300], 6, 7], LONG[:301], [*LONG[:100], 9], LONG[:17], [8], LONG]


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    extra = {**SHAPES[request.param], "sliding_window": WINDOW}
    shape = tiny_model.Shape(layers=3, max_positions=CONTEXT, extra=extra)
    return tiny_model.write(tmp_path_factory.mktemp("windows") / request.param, shape)


@pytest.fixture
def make(model: Path, make_engine: MakeEngine) -> Iterator[MakeEngine]:
    def made(**settings: Any) -> Engine:
        return make_engine(model, scheduler__max_batch_tokens=ROWS, scheduler__max_running=4, **settings)

    yield made


def small(make: MakeEngine, tokens: int, **settings: Any) -> Engine:
    """Return an engine whose cache holds one sequence of so many tokens, and not a block more."""
    large = make(kv_cache__memory="4MB", **settings)
    block = large.executable.kv_bytes // large.limits.kv_blocks
    return make(kv_cache__memory=block * Needs(large.limits.windows, ROWS).most(tokens), **settings)


def facts(completions: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.text, one.logprobs, one.finish_reason) for one in completions]


@pytest.mark.parametrize("dtype", ["f32", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_text_of_twenty_windows_has_the_same_bytes_as_with_all_blocks_kept(make: MakeEngine, dtype: str):
    engine, whole = small(make, CONTEXT, kv_cache__dtype="f32"), make(kv_cache__windows=False, kv_cache__dtype="f32")
    if dtype == "int8":
        engine, whole = make(kv_cache__dtype=dtype), make(kv_cache__windows=False, kv_cache__dtype=dtype)
    assert whole.limits.windows == (0,)
    assert engine.limits.context == whole.limits.context == CONTEXT
    assert dtype == "int8" or engine.executable.kv_bytes < 0.6 * 32 * 3 * 16 * 2 * 2 * 16 * 4
    for params in (GREEDY, SAMPLED):
        prompts = [LONG, LONG[:300]]
        assert facts(engine.generate(prompts, params)) == facts(whole.generate(prompts, params))
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_memory_is_flat_behind_the_window(make: MakeEngine):
    engine = make(kv_cache__prefix=False, kv_cache__dtype="f32")
    needs = Needs(engine.limits.windows, ROWS)
    stream = engine.submit(LONG, replace(GREEDY, max_tokens=40))
    most = []
    while engine.step():
        used = engine.scheduler.pool.total - engine.scheduler.pool.free
        most += [used - needs.wide * one.blocks.size for one in engine.scheduler._running]
    assert len(stream.result().token_ids) == 40
    assert max(most) <= needs.near * 6
    assert most[-1] <= needs.near * 4


@pytest.mark.parametrize("speculate", ["ngram", pytest.param("none", marks=pytest.mark.slow)])
def test_shared_beginnings_and_guesses_change_no_byte(make: MakeEngine, speculate: str):
    settings = {"speculation__use": speculate, "kv_cache__memory": "8MB"}
    with_it, without = make(**settings), make(kv_cache__windows=False, kv_cache__prefix=False, **settings)
    for params in (GREEDY, SAMPLED):
        expected = facts(without.generate(PROMPTS, params))
        for _ in range(2):
            found = with_it.generate(PROMPTS, params)
            assert facts(found) == expected
    cached = [one.usage.cached_tokens for one in found]
    assert cached == [448, 288, 288, 96, 16, 0, 448], "who begins alike finds it, wherever it parts"


def test_a_conversation_continues_from_its_cached_blocks(make: MakeEngine):
    engine, without = make(kv_cache__memory="8MB"), make(kv_cache__windows=False, kv_cache__prefix=False)
    turn = LONG[:200]
    for _ in range(3):
        found, expected = (one.generate([turn], GREEDY)[0] for one in (engine, without))
        assert facts([found]) == facts([expected])
        turn = [*turn, *found.token_ids, 5, 6, 7]
    assert found.usage.cached_tokens == (len(turn) - 27 - 3 - 1) // 16 * 16


@pytest.mark.slow
def test_evicted_blocks_are_computed_again(make: MakeEngine):
    engine, without = small(make, 320), make(kv_cache__windows=False, kv_cache__prefix=False)
    for _ in range(2):
        for prompt in (LONG[:290], [7, *LONG[:280]], LONG[:290], LONG[100:350]):
            assert facts(engine.generate([prompt], GREEDY)) == facts(without.generate([prompt], GREEDY))
    assert engine.scheduler.prefixes.tree.evictions > 0
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


@pytest.mark.parametrize("prefix", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_preempted_sequences_give_the_same_bytes(make: MakeEngine, monkeypatch: pytest.MonkeyPatch, prefix: bool):
    engine = small(make, CONTEXT, kv_cache__prefix=prefix, speculation__use="ngram")
    expected = facts(make(kv_cache__windows=False).generate(PROMPTS, SAMPLED))
    with monkeypatch.context() as patched:
        scheduler = preempting(engine, patched)
        found = engine.generate(PROMPTS, SAMPLED)
    assert facts(found) == expected
    assert scheduler.preempted >= 4
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


@pytest.mark.slow
def test_several_answers_to_one_prompt_share_it(make: MakeEngine):
    engine, without = make(kv_cache__memory="8MB"), make(kv_cache__windows=False, kv_cache__prefix=False)
    for seed in (1, 2):
        found, expected = (one.generate([LONG[:250]] * 3, replace(SAMPLED, seed=seed)) for one in (engine, without))
        assert facts(found) == facts(expected)
    assert [one.usage.cached_tokens for one in found] == [240] * 3


@pytest.mark.slow
def test_prompt_logprobs_and_hidden_states_are_the_same_with_windows(make: MakeEngine):
    engine, without = make(), make(kv_cache__windows=False, kv_cache__prefix=False)
    params = replace(GREEDY, prompt_logprobs=1, max_tokens=2)
    for _ in range(2):
        found, expected = (one.generate([LONG[:200]], params)[0] for one in (engine, without))
        assert found.prompt_logprobs == expected.prompt_logprobs


@pytest.mark.slow
def test_saved_prefixes_hold_all_blocks_of_all_layers(make: MakeEngine, tmp_path: Path):
    settings = {"kv_cache__prefix_dir": str(tmp_path / "prefixes")}
    with make(**settings) as first:
        assert first.limits.windows == (0,)
        expected = facts(first.generate([LONG], GREEDY))
    with make(**settings) as again:
        found = again.generate([LONG], GREEDY)
    assert facts(found) == expected
    assert found[0].usage.cached_tokens == 448


def test_a_cache_that_holds_the_windows_has_the_whole_context(make: MakeEngine):
    engine = small(make, CONTEXT)
    assert engine.limits.context == CONTEXT
    assert engine.limits.tokens < CONTEXT
    assert engine.load().tokens == engine.limits.tokens
