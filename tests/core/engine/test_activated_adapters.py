"""Activated adapters (aLoRA) act from the last occurrence of their invocation on; rows before it are the base's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, preempting

from infeng_core import Engine, Request, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
SAMPLED = replace(GREEDY, temperature=0.9, seed=7)
COMMON = [5 + i % 40 for i in range(64)]
A, B = (60, 61, 62), (70, 71)

PROMPTS: dict[str, list[int]] = {
    "missing": COMMON[:50],
    "incomplete": [*COMMON[:50], *A[:2]],
    "start": [*A, *COMMON[:40]],
    "end": [*COMMON[:50], *A],
    "twice": [*COMMON[:10], *A, *COMMON[:20], *A, 9],
    "across a block": [*COMMON[:47], *A, 9, 8],
    "at a block": [*COMMON[:48], *A],
    "alone": [*A],
    "of another": [*COMMON[:20], *B, 9],
    "both": [*COMMON[:20], *B, 9, *A, 5],
    "early": [*COMMON[:18], *A, *COMMON[:40]],
}


def facts(completions: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.text, one.logprobs, one.prompt_logprobs, one.finish_reason) for one in completions]


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    """Two activated adapters, the weights of the first as a plain one, and another plain one."""
    made = {
        "a": tiny_adapter.write(tmp_path / "a", 0, invocation=A),
        "b": tiny_adapter.write(tmp_path / "b", 1, invocation=B),
        "always": tiny_adapter.write(tmp_path / "always", 0),
        "plain": tiny_adapter.write(tmp_path / "plain", 2),
    }
    return {name: str(path) for name, path in made.items()}


def cached(engine: Engine, prompt: list[int], adapter: Any = None, salt: str = "") -> int:
    """Return how many tokens of a prompt a request finds in the cache."""
    request = Request(tuple(prompt), GREEDY, adapter=adapter, cache_salt=salt)
    return engine.submit(request).result().usage.cached_tokens


def mixed() -> tuple[list[list[int]], list[Any]]:
    """Return every prompt with every kind of adapter."""
    uses: list[Any] = [None, "a", "b", "plain", (("plain", 0.5), ("a", 1.0)), (("b", 0.5), ("a", 1.0))]
    pairs = [(prompt, use) for prompt in PROMPTS.values() for use in uses]
    return [prompt for prompt, _ in pairs], [use for _, use in pairs]


@pytest.mark.slow
@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_the_cache_batches_and_chunks_change_no_byte(make_engine: MakeEngine, paths: dict[str, str], speculate: str):
    prompts, uses = mixed()
    settings = {"adapters__paths": paths, "speculation__use": speculate}
    alone = make_engine(kv_cache__prefix=False, **settings)
    ways = [
        make_engine(kv_cache__prefix=True, **settings),
        make_engine(kv_cache__prefix=False, scheduler__max_batch_tokens=7, **settings),
        make_engine(kv_cache__prefix=True, scheduler__max_batch_tokens=17, **settings),
    ]
    for params in (replace(SAMPLED, prompt_logprobs=1, max_tokens=2), GREEDY):
        expected = [alone.generate([one], params, adapters=[use])[0] for one, use in zip(prompts, uses, strict=True)]
        found = [engine.generate(prompts, params, adapters=uses) for engine in ways]
        assert [facts(one) for one in found] == [facts(expected)] * 3
    again = ways[0].generate(prompts, GREEDY, adapters=uses)
    assert facts(again) == facts(expected)
    assert sum(one.usage.cached_tokens for one in again) > 1000


def test_rows_before_the_invocation_are_the_bases_and_rows_from_it_on_the_adapters(
    make_engine: MakeEngine, paths: dict[str, str]
):
    engine = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    told = replace(GREEDY, prompt_logprobs=1)
    for name in ("missing", "incomplete", "of another"):
        base, found = engine.generate([PROMPTS[name]] * 2, told, adapters=[None, "a"])
        assert facts([found]) == facts([base])
    for name in ("start", "alone"):
        whole, found = engine.generate([PROMPTS[name]] * 2, told, adapters=["always", "a"])
        assert facts([found]) == facts([whole])
    for name, begin in (("end", 50), ("twice", 33), ("across a block", 47), ("at a block", 48), ("early", 18)):
        base, found = engine.generate([PROMPTS[name]] * 2, told, adapters=[None, "a"])
        # The row of token i - 1 predicts token i: the first one that the adapter may change is after the first row.
        assert found.prompt_logprobs[: begin + 1] == base.prompt_logprobs[: begin + 1]
        assert found.prompt_logprobs[begin + 1] != base.prompt_logprobs[begin + 1]
        assert found.logprobs[0] != base.logprobs[0]


def test_only_the_prompt_is_searched_not_the_answer(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    params = replace(SAMPLED, max_tokens=20)
    [base] = engine.generate([PROMPTS["missing"]], params)
    said = base.token_ids[3:6]
    assert not {*said} <= {*PROMPTS["missing"]}
    engine.adapters.load("a", str(tiny_adapter.write(tmp_path / "a", 0, invocation=said)))
    assert facts(engine.generate([PROMPTS["missing"]], params, adapters="a")) == facts([base])
    [invoked] = engine.generate([[*PROMPTS["missing"], *base.token_ids[:6]]], params, adapters="a")
    assert invoked.token_ids != base.token_ids[6:]


def test_a_chain_over_one_conversation_reads_it_once(make_engine: MakeEngine, paths: dict[str, str]):
    engine = make_engine(adapters__paths=paths)
    fresh = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    talk, counts = list(COMMON), []
    for adapter, invocation in ((None, (9, 9)), ("a", A), (None, (8, 8)), ("b", B), ("a", A), ("plain", (7,))):
        talk += invocation
        found, expected = (one.generate([talk], GREEDY, adapters=adapter)[0] for one in (engine, fresh))
        assert facts([found]) == facts([expected])
        counts.append(found.usage.cached_tokens)
        if adapter is None:
            talk += found.token_ids
    assert counts == [0, 64, 64, 80, 80, 0], "whole blocks of what the base has read, and nothing for a plain adapter"


def test_what_is_computed_before_the_invocation_serves_everybody(make_engine: MakeEngine, paths: dict[str, str]):
    for first in ("a", "b", None):
        engine = make_engine(adapters__paths=paths)
        prompts = {"a": [*COMMON[:50], *A], "b": [*COMMON[:50], *B], None: COMMON[:52]}
        assert cached(engine, prompts[first], first) == 0
        for other, prompt in prompts.items():
            assert cached(engine, prompt, other) == 48
        assert cached(engine, prompts["a"], "a", salt="tenant") == 0
        assert cached(engine, prompts["a"], "always") == 0


def test_blocks_from_the_invocation_on_are_the_adapters(make_engine: MakeEngine, paths: dict[str, str]):
    engine = make_engine(adapters__paths=paths)
    prompt = PROMPTS["early"]  # 61 tokens, invoked at 18
    assert cached(engine, prompt, "a") == 0
    assert cached(engine, prompt, "a") == 48
    assert [cached(engine, prompt, use) for use in (None, "b", (("a", 0.5),), (("a", 1.0), ("b", 1.0)))] == [
        16,
        48,  # it is not invoked here, so it reads what the base has just computed
        16,
        48,  # the first adapter alone acts
    ]
    assert cached(engine, [*A, *COMMON[:40]], "a") == 0
    assert cached(engine, [*A, *COMMON[:40]], "a") == 32
    assert cached(engine, [*A, *COMMON[:40]]) == 0


def test_a_later_occurrence_makes_the_earlier_one_plain_text(make_engine: MakeEngine, paths: dict[str, str]):
    engine = make_engine(adapters__paths=paths)
    fresh = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    once, twice = PROMPTS["early"], [*PROMPTS["early"], *A, 5]
    for prompt in (once, twice, once, twice):
        found, expected = (one.generate([prompt], GREEDY, adapters="a")[0] for one in (engine, fresh))
        assert facts([found]) == facts([expected])
    assert found.usage.cached_tokens == 64
    assert cached(engine, twice) == 48, "the base finds what is before the second occurrence"


def test_saved_prefixes_turn_where_the_adapter_begins(make_engine: MakeEngine, paths: dict[str, str], tmp_path: Path):
    settings = {"adapters__paths": paths, "kv_cache__prefix_dir": str(tmp_path / "prefixes")}
    prompts, uses = mixed()
    with make_engine(kv_cache__prefix=False, adapters__paths=paths) as alone:
        expected = alone.generate(prompts, GREEDY, adapters=uses)
    with make_engine(**settings) as first:
        assert facts(first.generate(prompts, GREEDY, adapters=uses)) == facts(expected)
    for _ in range(2):
        with make_engine(**settings) as again:
            found = again.generate(prompts, GREEDY, adapters=uses)
            assert facts(found) == facts(expected)
            whole = [(len(prompt) - 1) // 16 * 16 for prompt in prompts]
            assert [one.usage.cached_tokens for one in found] == whole
            assert cached(again, [*COMMON[:50], *A, 9], "b") == 48


def test_the_bases_blocks_on_disk_serve_an_adapter(make_engine: MakeEngine, paths: dict[str, str], tmp_path: Path):
    settings = {"adapters__paths": paths, "kv_cache__prefix_dir": str(tmp_path / "prefixes")}
    with make_engine(**settings) as first:
        first.generate([COMMON], GREEDY)
    with make_engine(**settings) as again:
        assert cached(again, [*COMMON[:50], *A, *COMMON[:20]], "a") == 48
        again.generate([COMMON[:17]], GREEDY)  # in memory, and the rest on disk
    with make_engine(**settings) as last:
        assert cached(last, COMMON[:17]) == 16
        assert cached(last, [*COMMON[:50], *A, *COMMON[:20]], "a") == 64


@pytest.mark.parametrize("prefix", [True, False])
def test_preempted_requests_go_on_with_the_same_bytes(
    make_engine: MakeEngine, paths: dict[str, str], monkeypatch: pytest.MonkeyPatch, prefix: bool
):
    engine = make_engine(adapters__paths=paths, kv_cache__prefix=prefix, adapters__max_resident=2)
    names = ["early", "across a block", "both", "missing"]
    prompts, uses = [PROMPTS[name] for name in names], ["a", "a", "b", "a"]
    expected = [engine.generate([one], SAMPLED, adapters=[use])[0] for one, use in zip(prompts, uses, strict=True)]
    with monkeypatch.context() as patched:
        scheduler = preempting(engine, patched)
        found = engine.generate(prompts, SAMPLED, adapters=uses)
    assert facts(found) == facts(expected)
    assert scheduler.preempted >= 2
    assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())


def test_samples_of_one_prompt_share_it(make_engine: MakeEngine, paths: dict[str, str]):
    engine = make_engine(adapters__paths=paths)
    several = [Request(tuple(PROMPTS["early"]), replace(SAMPLED, seed=seed), adapter="a") for seed in range(4)]
    alone = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    expected = [alone.generate([one])[0] for one in several]
    assert facts(engine.generate(several)) == facts(expected)
    assert facts(engine.generate(several)) == facts(expected)
    assert len({one.token_ids for one in expected}) > 1


def test_a_reload_changes_the_invocation_of_later_requests(
    make_engine: MakeEngine, paths: dict[str, str], tmp_path: Path
):
    engine = make_engine(adapters__paths=paths)
    prompt, other = [*COMMON[:50], *A, 5], [*COMMON[:50], *B, 5]
    before = engine.generate([prompt], GREEDY, adapters="a")[0]
    running = engine.submit(prompt, GREEDY, adapter="a")
    engine.step()
    tiny_adapter.write(tmp_path / "a", 0, invocation=B)
    engine.adapters.reload("a")
    assert engine.adapters["a"].invocation == B
    base = engine.generate([prompt], GREEDY)[0]
    assert facts(engine.generate([prompt], GREEDY, adapters="a")) == facts([base])
    fresh = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    found, expected = (one.generate([other], GREEDY, adapters="a")[0] for one in (engine, fresh))
    assert facts([found]) == facts([expected])
    assert found.usage.cached_tokens == 48
    assert facts([running.result()]) == facts([before])


def test_vectors_and_scores_follow_the_invocation(make_engine: MakeEngine, paths: dict[str, str]):
    engine = make_engine(adapters__paths=paths, scheduler__max_batch_tokens=7)
    whole = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    for name in ("missing", "early", "start"):
        found, expected = (one.embed([PROMPTS[name]] * 2, adapters=["a", None]) for one in (engine, whole))
        assert np.array_equal(found, expected)
        assert np.array_equal(found[0], found[1]) == (name == "missing")
    prompt, rest = PROMPTS["early"][:30], PROMPTS["early"][30:]
    assert engine.score(prompt, rest, adapter="a") == whole.score(prompt, rest, adapter="a")
    assert engine.score(prompt, rest, adapter="a") != engine.score(prompt, rest)


@pytest.mark.slow
def test_layers_with_windows_find_the_same_blocks(make_engine: MakeEngine, paths: dict[str, str], tmp_path: Path):
    import tiny_model

    extra = {"model_type": "ministral", "architectures": ["MinistralForCausalLM"], "sliding_window": 24}
    layers = ["sliding_attention", "full_attention"]
    model = tiny_model.write(tmp_path / "windows", tiny_model.Shape(extra={**extra, "layer_types": layers}))
    prompts, uses = mixed()
    engine = make_engine(model, adapters__paths=paths)
    alone = make_engine(model, adapters__paths=paths, kv_cache__prefix=False, kv_cache__windows=False)
    expected = alone.generate(prompts, GREEDY, adapters=uses)
    for _ in range(2):
        found = engine.generate(prompts, GREEDY, adapters=uses)
        assert facts(found) == facts(expected)
    assert sum(one.usage.cached_tokens for one in found) > 1000
    assert cached(engine, [*COMMON[:50], *A, 7, 7], "b") == 48
