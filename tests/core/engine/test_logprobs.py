"""Reported logits are those from which tokens are drawn, and reporting them changes no token."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, Logprob, SamplingParams
from infeng_core.errors import RequestError
from infeng_core.requests.logprobs import logprob
from infeng_core.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_k=30, seed=3, max_tokens=12, ignore_eos=True)
LONG = [5 + i % 40 for i in range(100)]


def log_softmax(logits: Any) -> Any:
    """The textbook's way, row by row."""
    x = np.asarray(logits, np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def next_logits(engine: Engine, ids: list[int], adapter: str | None = None) -> Any:
    """Logits of what follows ``ids``, as a request of one token has them."""
    one = replace(GREEDY, max_tokens=1, logits=True)
    return engine.generate(ids, one, adapters=adapter)[0].logits[0]


@pytest.mark.parametrize("speculate", ["none", "ngram"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_logits_and_logprobs_are_those_from_which_tokens_were_drawn(
    make_engine: MakeEngine, params: SamplingParams, speculate: str
):
    engine = make_engine(speculation__use=speculate)
    [plain] = engine.generate("the quick", params)
    others = ["fox", "a longer neighbour that prefills"]
    [found, *_] = engine.generate(["the quick", *others], replace(params, logprobs=3, logits=True))
    assert (found.token_ids, plain.logprobs, plain.logits) == (plain.token_ids, (), None)
    assert found.logits is not None
    assert found.logits.shape == (12, engine.model.config.vocab)
    ids = engine.tokenize("the quick")
    for index, one in enumerate(found.logprobs):
        row = next_logits(engine, [*ids, *found.token_ids[:index]])
        assert found.logits[index].tobytes() == row.tobytes()
        expected = log_softmax(row)
        assert one.token == found.token_ids[index]
        assert one.logprob == pytest.approx(expected[one.token], abs=1e-9)
        assert [token for token, _ in one.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [value for _, value in one.top] == pytest.approx(sorted(expected)[:-4:-1], abs=1e-9)


def test_events_together_carry_the_completions_logprobs(make_engine: MakeEngine):
    engine = make_engine()
    events = list(engine.stream("x", replace(SAMPLED, logprobs=0, logits=True)))
    whole = events[-1].completion
    assert whole is not None
    assert tuple(one for event in events for one in event.logprobs) == whole.logprobs
    assert np.concatenate([event.logits for event in events]).tobytes() == whole.logits.tobytes()
    assert all(one.top == () for one in whole.logprobs)


@pytest.mark.parametrize(
    "settings", [{}, {"scheduler__max_running": 1}, {"scheduler__max_batch_tokens": 8}, {"speculation__use": "ngram"}]
)
def test_logprobs_of_a_prompt_do_not_depend_on_its_chunks(
    make_engine: MakeEngine, settings: dict[str, Any], tmp_path: Path
):
    adapter = tiny_adapter.write(tmp_path / "x", 3)
    engine = make_engine(adapters__paths={"x": str(adapter)}, **settings)
    plain = engine.generate(LONG, GREEDY, adapters="x")[0].token_ids
    wanted = replace(GREEDY, prompt_logprobs=2)
    prompts: list[Any] = [LONG, LONG[:7], [9], LONG[:33]]
    found = engine.generate(prompts, wanted, adapters=["x", None, None, "x"])
    assert found[0].token_ids == plain
    for prompt, completion, name in zip(prompts, found, ["x", None, None, "x"], strict=True):
        assert len(completion.prompt_logprobs) == len(prompt)
        assert completion.prompt_logprobs[0] is None
        for position in {1, 2, len(prompt) // 2, len(prompt) - 1} & set(range(1, len(prompt))):
            row = next_logits(engine, prompt[:position], name)
            assert completion.prompt_logprobs[position] == logprob(row, prompt[position], 2)
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_score_is_the_sum_of_conditional_logprobs(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine(adapters__paths={"x": str(tiny_adapter.write(tmp_path / "x", 3))})
    for name in (None, "x"):
        found = engine.score(LONG[:20], LONG[20:45], adapter=name)
        whole = engine.generate(LONG[:45], replace(GREEDY, prompt_logprobs=0, max_tokens=1), adapters=name)
        assert found == whole[0].prompt_logprobs[20:]
    text = engine.score("the quick brown", " fox jumps")
    ids = engine.tokenize("the quick brown fox jumps")
    assert [one.token for one in text] == ids[len(ids) - len(text) :]
    assert engine.score([5, 6], []) == ()
    recorder = Recorder(engine)
    engine.score(LONG, [3, 4])
    assert sum(map(len, recorder.logits.values())) == 3, "logits of the prompt's own rows are not computed"
    with pytest.raises(RequestError, match="continuation: it and the prompt are not alike"):
        engine.score("text", [5])
    with pytest.raises(RequestError, match="token 999 is not in the vocabulary"):
        engine.score([5], [999])


def test_interrupted_steps_report_every_token_once(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine(scheduler__max_batch_tokens=8)
    params = replace(SAMPLED, logprobs=1, prompt_logprobs=1)
    expected = engine.generate(LONG[:20], params)[0]
    commit, calls = Scheduler.commit, itertools.count()

    def interrupted(*arguments: Any) -> None:
        if next(calls) % 7 == 0:
            raise KeyboardInterrupt
        commit(*arguments)

    monkeypatch.setattr(Scheduler, "commit", interrupted)
    stream, interrupts, is_busy = engine.submit(LONG[:20], params), 0, True
    while is_busy:
        try:
            is_busy = engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts > 2
    found = stream.result()
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
    assert found.prompt_logprobs == expected.prompt_logprobs


def test_equal_logits_are_reported_by_id():
    row = np.array([1.0, 3.0, 3.0, -2.0, 3.0], np.float32)
    found = logprob(row, 0, 2)
    assert isinstance(found, Logprob)
    assert [token for token, _ in found.top] == [1, 2]
    assert len(logprob(row, 0, 100).top) == 5
    assert logprob(np.full(4, -1e30, np.float32), 2, 1).logprob == pytest.approx(-np.log(4))


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_the_number_of_reported_logprobs_is_bounded(name: str):
    with pytest.raises(RequestError, match=f"{name}: 257 is not an integer from 0 to 256"):
        SamplingParams(**{name: 257})  # type: ignore[arg-type]


def test_a_rank_is_the_place_among_all_tokens_and_ties_go_by_id():
    row = np.array([1.0, 3.0, 2.0, 3.0, -5.0, 2.0], np.float32)
    order = [1, 3, 2, 5, 0, 4]
    assert [logprob(row, token, 0).rank for token in order] == [1, 2, 3, 4, 5, 6]
    for most in range(1, 7):
        top = [token for token, _ in logprob(row, 4, most).top]
        assert [logprob(row, token, most).rank for token in top] == list(range(1, most + 1))
