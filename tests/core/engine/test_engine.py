"""The public behaviour of an engine."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, Event, Request, SamplingParams
from infeng_core.errors import KernelError, ModelError, RequestError, ResourceError, UsageError
from infeng_core.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def test_stream_and_generate_give_the_same_text_and_tokens(make_engine: MakeEngine):
    engine = make_engine()
    [whole] = engine.generate("the quick", GREEDY)
    events = list(engine.stream("the quick", GREEDY))
    assert "".join(event.text for event in events) == whole.text
    assert tuple(token for event in events for token in event.token_ids) == whole.token_ids
    assert [event.completion is not None for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1].completion
    assert last is not None
    assert replace(last, timings=whole.timings, seed=whole.seed) == whole
    assert (whole.finish_reason, whole.usage.completion_tokens, whole.usage.prompt_tokens) == (
        "length",
        20,
        len(engine.tokenize("the quick")),
    )
    assert 0 <= whole.timings.queued <= whole.timings.first_token <= whole.timings.total


def test_prompts_may_be_texts_ids_or_requests_and_keep_their_order(make_engine: MakeEngine):
    engine = make_engine()
    ids = engine.tokenize("the lazy dog")
    one = engine.generate(ids, GREEDY)
    several = engine.generate(["fox", "the lazy dog", "x"], GREEDY)
    requests = engine.generate([Request("the lazy dog", GREEDY), Request(tuple(ids), GREEDY)])
    assert len(one) == 1
    assert engine.generate(np.array(ids), GREEDY)[0].text == one[0].text
    assert {one[0].text, several[1].text, requests[0].text, requests[1].text} == {one[0].text}
    assert engine.generate([], GREEDY) == []


def test_events_carry_the_index_of_their_prompt(make_engine: MakeEngine):
    engine = make_engine()
    texts = ["a", "b", "c"]
    events = list(engine.stream(texts, GREEDY))
    whole = engine.generate(texts, GREEDY)
    for index in range(3):
        assert "".join(event.text for event in events if event.index == index) == whole[index].text
    interleaved = [event.index for event in events[:6]]
    assert interleaved == [0, 1, 2, 0, 1, 2]


def test_a_seed_repeats_a_text_in_any_batch_and_a_drawn_seed_is_reported(make_engine: MakeEngine):
    engine = make_engine()
    free = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True)
    [first], [second] = engine.generate("x", free), engine.generate("x", free)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = engine.generate(["y", Request("x", replace(free, seed=first.seed)), "z"], free)
    assert (again[1].token_ids, again[1].seed) == (first.token_ids, first.seed)


def test_an_end_token_stops_and_is_not_in_the_text(make_engine: MakeEngine):
    engine = make_engine()
    [whole] = engine.generate("the quick", GREEDY)
    end = next(t for i, t in enumerate(whole.token_ids) if i >= 4 and t not in whole.token_ids[:i])
    position = whole.token_ids.index(end)
    [stopped] = engine.generate("the quick", replace(GREEDY, stop_token_ids=(end,)))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: position + 1]
    prompt = engine.tokenize("the quick")
    before = engine.tokenizer.decode(prompt + list(whole.token_ids[:position]))
    assert "the quick" + stopped.text == before


def test_special_tokens_are_spelled_in_the_answer_on_request(make_engine: MakeEngine):
    engine = make_engine()
    beginnings = replace(GREEDY, allowed_token_ids=(0,), max_tokens=3)
    ends = replace(GREEDY, allowed_token_ids=(1,), ignore_eos=False, skip_special_tokens=False)
    asked = [beginnings, replace(beginnings, skip_special_tokens=False), ends, replace(ends, ignore_eos=True)]
    found = engine.generate([Request("fox", params) for params in asked])
    assert [answer.text for answer in found] == ["", "<s>" * 3, "", "</s>" * len(found[3].token_ids)]
    assert found[2].finish_reason == "stop"


def test_a_tokenizer_without_special_tokens_need_not_accept_their_argument(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine()
    real = engine.tokenizer.detokenizer
    monkeypatch.setattr(engine.tokenizer, "detokenizer", lambda prompt: real(prompt))
    assert engine.generate("fox", GREEDY)[0].text


def test_the_models_own_end_token_stops_unless_it_is_ignored(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    [free] = engine.generate("fox", GREEDY)
    end = free.token_ids[7]
    shape = tiny_model.Shape(extra={"eos_token_id": [3, end]})
    other = make_engine(tiny_model.write(tmp_path / "model", shape))
    [stopped] = other.generate("fox", replace(GREEDY, ignore_eos=False))
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(end) + 1]
    [ignoring] = other.generate("fox", GREEDY)
    assert ignoring.token_ids == free.token_ids


def test_a_stop_string_across_tokens_ends_the_text_before_it(make_engine: MakeEngine):
    engine = make_engine()
    [whole] = engine.generate("the quick", GREEDY)
    assert len(whole.text) >= 10
    stop = whole.text[4:8]
    events = list(engine.stream("the quick", replace(GREEDY, stop=(stop,))))
    completion = events[-1].completion
    assert completion is not None
    assert completion.finish_reason == "stop"
    assert completion.text == whole.text[: whole.text.index(stop)]
    assert "".join(event.text for event in events) == completion.text
    assert len(completion.token_ids) < 20


def test_generation_ends_with_the_context(make_engine: MakeEngine):
    engine = make_engine()
    context = engine.limits.context
    assert context == 256
    prompt = [5] * (context - 3)
    [completion] = engine.generate(prompt, replace(GREEDY, max_tokens=100))
    assert (completion.finish_reason, completion.usage.completion_tokens) == ("length", 3)
    with pytest.raises(RequestError, match=r"prompt of 256 tokens: the context is 256 tokens \(the model's own\)"):
        engine.generate([5] * context, GREEDY)


def test_a_small_cache_limits_the_context_and_says_so(make_engine: MakeEngine):
    engine = make_engine(kv_cache__memory=40_000)
    assert engine.limits.context < 256
    assert engine.executable.kv_bytes <= 40_000
    with pytest.raises(RequestError, match=r"kv_cache\.memory is 40000 bytes"):
        engine.generate([5] * 250, GREEDY)
    with pytest.raises(ResourceError, match="not one block of 16 tokens"):
        make_engine(kv_cache__memory=100)


def test_more_requests_than_fit_at_once_wait_their_turn(make_engine: MakeEngine):
    engine = make_engine(kv_cache__memory=80_000, scheduler__max_running=3, scheduler__max_batch_tokens=8)
    recorder = Recorder(engine)
    many = engine.generate([[7 + i] * (1 + i % 20) for i in range(30)], replace(GREEDY, max_tokens=5))
    assert all(len(completion.token_ids) == 5 for completion in many)
    assert max(recorder.rows) == 8
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([400], "token 400 is not in the vocabulary of 320"),
        ([-1], "token -1 is not in the vocabulary"),
        ([], "it is empty"),
        (Request("x", adapter="poet"), "adapter 'poet': no adapter of that name is loaded"),
        ("\udcff", "not valid Unicode"),
        (b"abc", "neither a text nor a sequence of token ids"),
        ([1, "a"], "neither a text nor a sequence of token ids"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(make_engine: MakeEngine, prompt: object, text: str):
    engine = make_engine()
    with pytest.raises(RequestError, match=text):
        engine.generate([prompt], GREEDY)  # type: ignore[list-item]
    assert engine.generate("x", GREEDY)[0].usage.completion_tokens == 20


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -0.1}, "temperature: -0.1 is out of range: 0 is greedy"),
        ({"temperature": float("nan")}, "temperature: nan is out of range"),
        ({"top_k": -1}, "top_k: -1 is not an integer"),
        ({"top_p": 0.0}, "top_p: 0.0 is out of range"),
        ({"top_p": 1.5}, "top_p: 1.5 is out of range"),
        ({"min_p": 1.0}, "min_p: 1.0 is out of range"),
        ({"seed": 2**64}, "seed: 18446744073709551616 is not an integer from 0"),
        ({"max_tokens": 0}, "max_tokens: 0 is not an integer from 1"),
        ({"max_tokens": 2.0}, "max_tokens: 2.0 is not an integer"),
        ({"stop": ("",)}, "stop: '' is not a text of at least one character"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids: 'a' is not an integer"),
        ({"skip_special_tokens": None}, "skip_special_tokens: None is neither true nor false"),
        ({"stop_token_ids": 5}, "stop_token_ids: 5 is not a sequence"),
        ({"stop": 5}, "stop: 5 is not a sequence"),
        ({"stop": ["x"] * 65}, "stop: 65 texts of together 65 characters: give at most 64 of together 4096 characters"),
        ({"stop": ["x" * 4097]}, "stop: 1 texts of together 4097 characters"),
        ({"stop": (str(i) for i in range(100_000))}, "stop: 100000 texts"),
        ({"temperature": 1e39}, "temperature: 1e+39 is out of range"),  # infinite as float32
        ({"temperature": 1e-39}, "temperature: 1e-39 is out of range: 0 is greedy"),  # its inverse is infinite
        ({"temperature": 10**400}, "temperature: 1000"),
        ({"temperature": True}, "temperature: True is out of range"),
        ({"temperature": np.float64("inf")}, "temperature: "),
        ({"temperature": "1"}, "temperature: '1' is out of range"),
        ({"top_p": 1e-46}, "top_p: 1e-46 is out of range"),  # 0 as float32
        ({"min_p": 1 - 1e-12}, "min_p: 0.999999999999 is out of range"),  # 1 as float32
        ({"top_k": np.float32(3)}, "top_k: "),
        ({"seed": np.int64(-1)}, "seed: "),
    ],
)
def test_an_impossible_sampling_parameter_is_refused(values: dict[str, object], text: str):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)


def test_numpy_numbers_are_accepted(make_engine: MakeEngine):
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(20),  # type: ignore[arg-type]
        top_p=np.float64(0.75),
        min_p=np.float16(0.125),  # type: ignore[arg-type]
        seed=np.uint64(2**63),  # type: ignore[arg-type]
        max_tokens=np.int32(5),  # type: ignore[arg-type]
        stop=None,  # type: ignore[arg-type]
        stop_token_ids=np.array([319]),  # type: ignore[arg-type]
    )
    plain = SamplingParams(
        temperature=0.5, top_k=20, top_p=0.75, min_p=0.125, seed=2**63, max_tokens=5, stop_token_ids=(319,)
    )
    assert repr(params) == repr(plain)
    engine = make_engine()
    assert engine.generate("x", params)[0].token_ids == engine.generate("x", plain)[0].token_ids


def test_prompts_may_come_from_an_iterator(make_engine: MakeEngine):
    engine = make_engine()
    one, two = engine.generate(["a", "b"], GREEDY)
    found = engine.generate((text for text in "ab"), GREEDY, adapters=iter([None, None]))
    assert [completion.token_ids for completion in found] == [one.token_ids, two.token_ids]
    ids = engine.tokenize("a")
    assert engine.generate(iter(ids), GREEDY)[0].token_ids == one.token_ids
    assert engine.submit(iter(ids), GREEDY).result().token_ids == one.token_ids


@pytest.mark.parametrize("prompts", [None, {"a": 1}, {"a", "b"}, b"ab", 5, np.array(5), 0.5, [None], [{1: 2}], [[1.5]]])
def test_an_object_that_is_no_prompt_is_refused(make_engine: MakeEngine, prompts: Any):
    engine = make_engine()
    for call in (engine.generate, engine.stream, engine.submit):
        with pytest.raises(RequestError, match="prompt"):
            call(prompts, GREEDY)


def test_the_fields_of_a_request_are_checked_too(make_engine: MakeEngine):
    engine = make_engine()
    with pytest.raises(RequestError, match="params: dict is not SamplingParams"):
        engine.generate("x", {"temperature": 0})  # type: ignore[arg-type]
    for adapters in (5, {"a": 1}):
        with pytest.raises(RequestError, match=r"adapter: .* is no adapter"):
            engine.generate("x", GREEDY, adapters=adapters)  # type: ignore[arg-type]
    for weight in (1e39, float("nan"), 10**400, True):
        with pytest.raises(RequestError, match=r"weight of adapter a: .* is out of range"):
            engine.generate("x", GREEDY, adapters=(("a", weight),))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="stop_token_ids: token 320 is not in the vocabulary of 320"):
        engine.generate("x", replace(GREEDY, stop_token_ids=(319, 320)))


def test_each_request_says_whether_special_tokens_in_its_text_are_ids(make_engine: MakeEngine):
    text = "a</s>b"
    for setting in (True, False):
        engine = make_engine(tokenizer__parse_special=setting)
        prompts = [Request(text, GREEDY, parse_special=given) for given in (True, None, False, True)]
        found = [ids for _, ids in engine._submissions.inputs.take([*prompts, "x"], GREEDY, None)]
        parsed, plain = (engine.tokenizer.encode([text], parse_special=given)[0] for given in (True, False))
        assert found == [parsed, parsed if setting else plain, plain, parsed, engine.tokenize("x")]
        assert parsed != plain
        assert len(engine.score(Request(text, parse_special=False), "c")) == 1
    with pytest.raises(RequestError, match="parse_special: 'no' is neither true, false nor None"):
        Request(text, GREEDY, parse_special="no")  # type: ignore[arg-type]


def test_a_text_without_end_is_refused_before_it_is_tokenized(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    most = 32 * engine.limits.context
    with pytest.raises(RequestError, match=r"prompt of \d+ tokens: the context is 256 tokens"):
        engine.generate("\n" * most, GREEDY)
    monkeypatch.setattr(engine.tokenizer, "encode", None)
    with pytest.raises(RequestError, match=rf"prompt of {10**7} characters: .* at most {most} characters are read"):
        engine.generate("x" * 10**7, GREEDY)


def test_one_stop_string_may_be_given_without_a_list():
    assert SamplingParams(stop="ab").stop == ("ab",)  # type: ignore[arg-type]


def test_cancelling_ends_one_request_and_frees_its_blocks(make_engine: MakeEngine):
    engine = make_engine()
    keep, drop = engine.submit("keep", GREEDY), engine.submit("drop", replace(GREEDY, max_tokens=200))
    for _ in range(5):
        engine.step()
    drop.cancel()
    assert drop.finished
    partial = drop.result()
    assert (partial.finish_reason, len(partial.token_ids)) == ("cancelled", 5)
    assert "".join(event.text for event in drop) == partial.text
    assert keep.result().token_ids == engine.generate("keep", GREEDY)[0].token_ids
    drop.cancel()
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_request_that_waits_can_be_cancelled(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_running=1)
    first, second = engine.submit("a", GREEDY), engine.submit("b", GREEDY)
    engine.step()
    second.cancel()
    assert second.result().token_ids == ()
    assert first.result().finish_reason == "length"


def test_leaving_a_stream_early_cancels_unfinished_requests(make_engine: MakeEngine):
    engine = make_engine()
    for event in engine.stream(["a", "b"], GREEDY):
        assert isinstance(event, Event)
        break
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    assert engine.step() is False


@pytest.mark.slow
def test_several_engines_live_in_one_process(make_engine: MakeEngine, tmp_path: Path):
    other = tiny_model.write(tmp_path / "model", tiny_model.Shape(seed=9, tie=False, bias=True))
    first, second = make_engine(threads__count=2), make_engine(other, threads__count=2)
    alone = [engine.generate("the", GREEDY)[0].token_ids for engine in (first, second)]
    streams = [engine.submit("the", GREEDY) for engine in (first, second)]
    while first.step() | second.step():
        pass
    assert [stream.result().token_ids for stream in streams] == alone
    assert alone[0] != alone[1]


def test_threads_may_share_an_engine(make_engine: MakeEngine):
    engine = make_engine(threads__count=2)
    expected = [engine.generate(f"prompt {i}", GREEDY)[0].token_ids for i in range(8)]
    found: dict[int, tuple[int, ...]] = {}

    def ask(i: int) -> None:
        found[i] = engine.generate(f"prompt {i}", GREEDY)[0].token_ids

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [found[i] for i in range(8)] == expected


def test_another_thread_may_cancel(make_engine: MakeEngine):
    engine = make_engine()
    stream = engine.submit("x", replace(GREEDY, max_tokens=250))
    seen = []
    for event in stream:
        seen.append(event)
        if len(seen) == 3:
            thread = threading.Thread(target=stream.cancel)
            thread.start()
            thread.join()
    completion = seen[-1].completion
    assert completion is not None
    assert completion.finish_reason == "cancelled"


def test_closing_ends_requests_in_flight(make_engine: MakeEngine):
    engine = make_engine()
    stream = engine.submit("x", GREEDY)
    engine.step()
    engine.close()
    engine.close()
    assert stream.result().finish_reason == "cancelled"
    with pytest.raises(UsageError, match="engine: it is closed"):
        engine.generate("x", GREEDY)
    with pytest.raises(UsageError, match="engine: it is closed"):
        engine.step()


def test_a_failed_step_changes_nothing(make_engine: MakeEngine):
    engine = make_engine()
    expected = engine.generate("the quick", GREEDY)[0].token_ids
    stream = engine.submit("the quick", GREEDY)
    inner, failures = engine.executable, iter([True, False, True, True, False] + [False] * 50)

    class Failing(Recorder):
        def run(self, batch):  # type: ignore[no-untyped-def]
            logits = inner.run(batch)
            if next(failures):
                raise KernelError("step", "made to fail")
            return logits

    Failing(engine)
    raised = 0
    while not stream.finished:
        try:
            engine.step()
        except KernelError:
            raised += 1
    assert raised == 3
    assert stream.result().token_ids == expected


@pytest.mark.parametrize("place", ["before", "after"])
def test_ctrl_c_between_giving_out_and_recording_repeats_no_token(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, place: str
):
    engine = make_engine()
    expected = [completion.token_ids for completion in engine.generate(["the quick", "x"], GREEDY)]
    streams = [engine.submit(prompt, GREEDY) for prompt in ("the quick", "x")]
    commit, calls = Scheduler.commit, itertools.count()

    def interrupted(*arguments: Any) -> None:
        hit = next(calls) % 3 == 0
        if hit and place == "before":
            raise KeyboardInterrupt
        commit(*arguments)
        if hit:
            raise KeyboardInterrupt

    monkeypatch.setattr(Scheduler, "commit", interrupted)
    interrupts, is_busy = 0, True
    while is_busy:
        try:
            is_busy = engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts > 5
    assert [stream.result().token_ids for stream in streams] == expected
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_no_event_is_lost_when_the_loop_over_them_runs_the_engine_too(make_engine: MakeEngine):
    engine = make_engine()
    expected = [completion.token_ids for completion in engine.generate(["a", "b"], GREEDY)]
    seen: list[list[int]] = [[], []]
    for event in engine.stream(["a", "b"], GREEDY):
        seen[event.index] += event.token_ids
        for _ in range(7):
            engine.step()
    assert [tuple(tokens) for tokens in seen] == expected


def test_the_kernels_that_run_are_listed(make_engine: MakeEngine):
    ops = make_engine().bound()
    assert {op.op for op in ops} >= {"embed", "rmsnorm", "linear", "rope", "kv_append", "attention"}
    for op in ops:
        assert op.library
        assert op.kernel
        assert op.reason
        assert 1 <= op.rows[0] <= op.rows[1]


def test_a_model_needs_its_tokenizer_and_a_name(make_engine: MakeEngine, tmp_path: Path):
    directory = tiny_model.write(tmp_path / "model")
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        make_engine(directory)
    with pytest.raises(UsageError, match="model: none is named"):
        Engine()
