"""A scheduler may take a sequence's blocks and adapters away and start it again later: its bytes stay the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from engine_parts import MakeEngine, preempting

from infeng_core import Request, SamplingParams
from infeng_core.errors import AdapterError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, logprobs=1)


@pytest.mark.parametrize("speculate", ["none", "ngram"])
@pytest.mark.parametrize("prefix", [True, False])
def test_preempted_sequences_give_the_same_tokens(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speculate: str, prefix: bool
):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("abc")}
    engine = make_engine(
        adapters__paths=paths, adapters__max_resident=2, speculation__use=speculate, kv_cache__prefix=prefix
    )
    prompts: list[Any] = [[5] * 20, [6, 7, 6, 7, 6], "the quick", [9] * 30]
    names = ["a", "b", None, "c"]
    for params in (GREEDY, SAMPLED):
        expected = [engine.generate([p], params, adapters=n)[0] for p, n in zip(prompts, names, strict=True)]
        with monkeypatch.context() as patched:
            scheduler = preempting(engine, patched)
            before = scheduler.preempted
            found = engine.generate(prompts, params, adapters=names)
        assert [one.token_ids for one in found] == [one.token_ids for one in expected]
        assert [one.logprobs for one in found] == [one.logprobs for one in expected]
        assert scheduler.preempted >= before + 2
        assert engine.scheduler.free_blocks == engine.scheduler.pool.total
        assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())


def test_an_adapter_that_changes_while_its_request_is_preempted_is_an_error_of_that_request(
    make_engine: MakeEngine, tmp_path: Path
):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    engine = make_engine(adapters__paths=paths, adapters__max_resident=1)
    stream = engine.submit("x", replace(GREEDY, max_tokens=100), adapter="a")
    while not stream.is_ready:
        engine.step()
    [running] = engine.scheduler._running
    engine.scheduler.preempt(running, 0.0)
    engine.adapters.pin("b")  # which takes the only place
    tiny_adapter.write(tmp_path / "a", 9)
    engine.adapters.pin("b", False)
    with pytest.raises(AdapterError, match="adapter a"):
        stream.result()
    assert len(engine.generate("x", GREEDY, adapters="b")[0].token_ids) == 24
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_tokens_stay_the_same_when_the_cache_is_too_small_for_all_running_requests(make_engine: MakeEngine):
    prompts = [[5 + i] * (30 + i) for i in range(6)]
    roomy = make_engine()
    expected = [roomy.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
    block = roomy.executable.kv_bytes // roomy.limits.kv_blocks
    engine = make_engine(kv_cache__memory=9 * block)
    assert [one.token_ids for one in engine.generate(prompts, GREEDY)] == expected
    assert engine.scheduler.preempted > 0
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total == 9


def test_a_request_ends_with_its_present_text_at_its_timeout(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_running=1)
    long = replace(GREEDY, max_tokens=200)
    first = engine.submit("x", long)
    late = engine.submit(Request("y", GREEDY, timeout=0.0))
    engine.step()
    assert late.result().finish_reason == "timeout"
    assert late.result().token_ids == ()
    cut = engine.submit(Request("z", long, timeout=30.0))
    first.cancel()
    while not cut.is_ready:
        engine.step()
    sequence = cut._output.sequence
    heap = engine.scheduler._deadlines._heap
    assert heap[0][2] is sequence
    heap[0] = (0.0, *heap[0][1:])  # thirty seconds later
    engine.step()
    found = cut.result()
    assert (found.finish_reason, len(found.token_ids) > 0) == ("timeout", True)
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
