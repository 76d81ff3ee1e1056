"""Logit processors: each request gets its own processors' effect, and other requests are not affected."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_model
from engine_parts import MakeEngine, Recorder, preempting

from infeng_core import Engine, Request, SamplingParams, _native
from infeng_core.backends.interface import InterruptedStepError
from infeng_core.errors import InfengError, PluginError, RequestError
from infeng_core.requests import processor_thread
from infeng_core.requests.chain import MOST_FORCED
from infeng_core.requests.processors import Adjustment, Vocabulary, wrong
from infeng_core.scheduling.scheduler import Scheduler

VOCAB = tiny_model.VOCAB
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=24, ignore_eos=True)
LOOP = (5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7)

PLUGIN = '''
import numpy as np
from infeng_core.api import Adjustment, RequestError, hookimpl

made = []  # (argument, prompt) of each

class Stateful:
    """Allows few tokens, and likes few of those, all depending on every token before."""

    def __init__(self, vocabulary, share):
        self.vocabulary, self.share, self.sum, self.count = vocabulary, share, 0, 0
        self.mask = np.zeros(-(-vocabulary.size // 32), np.uint32)  # used for each row

    def extend(self, tokens):
        self.sum, self.count = (self.sum + sum(tokens)) % 3, self.count + len(tokens)

    def row(self, guesses):
        before = self.sum, self.count
        self.extend(guesses)
        part, turn = self.sum, self.count % self.share
        self.sum, self.count = before
        self.mask[:] = self.vocabulary.mask(i for i in range(2, self.vocabulary.size) if i % self.share == turn)
        ids = np.array([5 + part, 5 + part, 9], np.int32)
        return Adjustment(self.mask, ids, np.array([1.5, 0.25, 1.0], np.float32), np.full(3, 1.25, np.float32))

class Spoilt(Stateful):
    """Does something wrong after some tokens."""

    def __init__(self, vocabulary, what, after):
        super().__init__(vocabulary, 1)
        self.what, self.after = what, after

    def extend(self, tokens):
        super().extend(tokens)
        if self.what == "extend" and self.count >= self.after:
            raise ValueError("by design")

    def row(self, guesses):
        if self.count + (len(guesses) if self.what != "guesses" else 0) < self.after:
            return None
        if self.what == "guesses":
            return 1 / 0 if guesses else None
        return WHAT[self.what](self.vocabulary)

class Panic(BaseException):
    pass

def panic(vocabulary):
    raise Panic("unwrap on None")

WHAT = {
    "row": lambda vocabulary: 1 / 0,
    "panic": panic,
    "type": lambda vocabulary: {"allowed": vocabulary.mask([5])},
    "dtype": lambda vocabulary: Adjustment(vocabulary.mask([5]).astype(np.int64)),
    "shape": lambda vocabulary: Adjustment(np.ones(3, np.uint32)),
    "ids": lambda vocabulary: Adjustment(ids=np.array([5, vocabulary.size], np.int32)),
    "negative": lambda vocabulary: Adjustment(ids=np.array([-1], np.int32)),
    "infinite": lambda vocabulary: Adjustment(ids=np.array([5], np.int32), biases=np.array([np.inf], np.float32)),
    "lengths": lambda vocabulary: Adjustment(ids=np.array([5], np.int32), biases=np.zeros(2, np.float32)),
    "without": lambda vocabulary: Adjustment(biases=np.zeros(2, np.float32)),
    "nothing": lambda vocabulary: Adjustment(vocabulary.mask([])),
}

class Forced(Stateful):
    """Allows one token at most places, and says so, or something else."""

    def __init__(self, vocabulary, what, _):
        super().__init__(vocabulary, 1)
        self.what = what

    def single(self, count):
        return 5 + count if count % 8 else None

    def row(self, guesses):
        single = self.single(self.count + len(guesses))
        return None if single is None else Adjustment(self.vocabulary.mask([single]))

    def forced(self):
        found, count = [], self.count
        while (single := self.single(count)) is not None:
            found, count = [*found, single], count + 1
        return FORCED[self.what](found)

FORCED = {
    "forced": lambda found: tuple(found),
    "unsaid": lambda found: (),
    "wrong": lambda found: [6] * 20,
    "raises": lambda found: 1 / 0,
    "no ids": lambda found: ["a"],
    "no tokens": lambda found: [-1],
    "nothing": lambda found: None,
}

class Kinds:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def make(self, argument, prompt):
        made.append((argument, list(prompt)))
        if argument == "refused":
            raise RequestError("probe", "it is refused", "say something else")
        if argument == "broken":
            raise ValueError("by design")
        if argument == "none":
            return None
        if isinstance(argument, tuple) and argument[1] == "forced":
            return Forced(self.vocabulary, *argument)
        return Stateful(self.vocabulary, argument) if isinstance(argument, int) else Spoilt(self.vocabulary, *argument)

@hookimpl
def infeng_logit_processors():
    return {"probe": Kinds}
'''


@pytest.fixture
def make(make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    """Return a function that makes an engine with the plugin above."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "probe_plugin.py").write_text(PLUGIN)
    path = tmp_path / "plugin.yaml"
    head = "infeng_plugin: 1\nname: prober\nversion: 1\npython: probe_plugin\n"
    path.write_text(head + "provides: {logit_processors: [probe]}\n")
    yield lambda *args, **settings: make_engine(*args, plugins__paths=[str(path)], **settings)
    import sys

    sys.modules.pop("probe_plugin", None)


def probing(params: SamplingParams, argument: Any) -> SamplingParams:
    return replace(params, processors=(("probe", argument),))


def mix() -> list[Request]:
    """Return requests with and without processors."""
    found = []
    for index, params in enumerate((GREEDY, SAMPLED, replace(SAMPLED, top_k=4), replace(GREEDY, max_tokens=60))):
        found += [
            Request(LOOP, probing(params, 11 + index)),
            Request("the quick brown fox", params),
            Request((7, index + 2), replace(params, repetition_penalty=1.3, min_tokens=4, stop_token_ids=(9, 14))),
        ]
    return found


def tokens(engine: Engine, requests: list[Request]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in engine.generate(requests)]


@pytest.mark.parametrize("rows", [30, pytest.param(512, marks=pytest.mark.slow)])
def test_tokens_depend_neither_on_guesses_nor_on_the_batch(make: MakeEngine, rows: int):
    plain = make(scheduler__max_batch_tokens=rows)
    guessing = make(scheduler__max_batch_tokens=rows, speculation__use="ngram", speculation__tokens=6)
    alone = [tokens(plain, [request])[0] for request in mix()]
    assert tokens(plain, mix()) == alone
    found = guessing.generate(mix())
    assert [completion.token_ids for completion in found] == alone
    probed = [completion.usage for completion, request in zip(found, mix(), strict=True) if request.params.processors]
    assert sum(usage.accepted_tokens for usage in probed) > 0
    for ids, request in zip(alone, mix(), strict=True):
        for _, share in request.params.processors:
            assert all(token % share == place % share for place, token in enumerate(ids))


OWN: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_token_ids": range(100, 140)},
    "bias": {"logit_bias": {17: 4.0, 230: -100.0, 5: 0.1}},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": tuple(range(0, VOCAB, 2))},
    "bad_words": {"bad_words_ids": [(i,) for i in range(0, VOCAB, 3)] + [(230, 230), (*LOOP[-2:], 230)]},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.9},
    "frequency": {"frequency_penalty": 0.7},
    "all": {
        "allowed_token_ids": range(100, 140),
        "bad_words_ids": [(105,), (101, 102)],
        "logit_bias": ((110, 2.5), (111, -1.0)),
        "repetition_penalty": 0.8,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.7,
    },
}


def stated(x: np.ndarray, params: SamplingParams, prompt: tuple[int, ...], new: tuple[int, ...]) -> np.ndarray:
    """What the documentation says of a row behind ``new``, in binary32."""
    x = x.copy()
    for id_, bias in params.logit_bias:
        x[id_] += np.float32(bias)
    for id_ in set(prompt + new):
        x[id_] = (
            x[id_] / np.float32(params.repetition_penalty)
            if x[id_] > 0
            else x[id_] * np.float32(params.repetition_penalty)
        )
        if id_ in new:
            drop = np.float32(params.frequency_penalty) * np.float32(new.count(id_))
            x[id_] -= np.float32(drop + np.float32(params.presence_penalty))
    banned = {
        word[-1] for word in params.bad_words_ids if (prompt + new)[len(prompt + new) - len(word) + 1 :] == word[:-1]
    }
    if params.allowed_token_ids is not None:
        banned |= set(range(VOCAB)) - set(params.allowed_token_ids)
    if len(new) < params.min_tokens:
        banned |= set(params.stop_token_ids)
    x[list(banned)] = -np.inf
    return x


@pytest.mark.parametrize("speculate", ["none", "ngram"])
@pytest.mark.parametrize("which", OWN)
def test_the_engines_own_parameters_act_as_they_are_documented(make_engine: MakeEngine, which: str, speculate: str):
    engine = make_engine(speculation__use=speculate, model__format="int4-g64")  # its greedy text has many tokens
    params = replace(GREEDY, max_tokens=40, logits=True, logprobs=0, **OWN[which])
    plain, completion = engine.generate([Request(LOOP, replace(params, **PLAIN)), Request(LOOP, params)])
    assert completion.logits is not None
    new = completion.token_ids
    assert len(new) > 2 and new != plain.token_ids
    for place, token in enumerate(new):
        row = completion.logits[place]
        assert token == np.argmax(stated(row, params, LOOP, new[:place]))
        raw = row.astype(np.float64) - row.max()
        assert completion.logprobs[place].logprob == pytest.approx(raw[token] - np.log(np.exp(raw).sum()), abs=1e-9)
    sampled = replace(params, temperature=0.8, seed=3)
    [first] = engine.generate([Request(LOOP, sampled)])
    assert first.logits is not None
    for place, token in enumerate(first.token_ids):
        assert np.isfinite(stated(first.logits[place], params, LOOP, first.token_ids[:place])[token])


PLAIN: dict[str, Any] = {
    "allowed_token_ids": None, "bad_words_ids": (), "logit_bias": (), "min_tokens": 0, "repetition_penalty": 1.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip


def test_min_tokens_prevents_an_end_exactly_until_the_minimum(make_engine: MakeEngine, tmp_path: Path):
    [free] = make_engine().generate("fox", GREEDY)
    end = free.token_ids[0]
    engine = make_engine(tiny_model.write(tmp_path / "model", tiny_model.Shape(extra={"eos_token_id": [3, end]})))
    params = replace(GREEDY, ignore_eos=False)
    assert engine.generate("fox", params)[0].token_ids == (end,)
    for least in (1, 2, 7):
        [held] = engine.generate("fox", replace(params, min_tokens=least))
        assert len(held.token_ids) > least
        assert not {3, end} & set(held.token_ids[:least])
    assert engine.generate("fox", replace(params, min_tokens=7, ignore_eos=True))[0].token_ids == free.token_ids


def bytes_of(engine: Engine, run: Callable[[], Any]) -> dict[int, list[bytes]]:
    """Return the logits of each request that ``run`` runs, from the first that it submits."""
    recorder = Recorder(engine)
    first = next(engine._submissions._ids) + 1
    run()
    engine.executable = recorder._inner
    return {id_ - first: rows for id_, rows in recorder.logits.items()}


SPOILT = {
    "row": r"plugin prober: logit processor probe: row\(\) raised ZeroDivisionError: division by zero",
    "extend": r"plugin prober: logit processor probe: extend\(\) raised ValueError: by design",
    "panic": r"plugin prober: logit processor probe: row\(\) raised Panic: unwrap on None",
    "type": r"plugin prober: logit processor probe: the result of row\(\) is {'allowed': .*, not Adjustment",
    "dtype": r"the result of row\(\) has a allowed that is of int64, not uint32",
    "shape": r"logit processor probe: the result of row\(\) has allowed of shape \(3,\), not \(10,\)",
    "ids": r"logit processor probe: the result of row\(\) has ids that are not in the vocabulary of 320",
    "negative": r"logit processor probe: the result of row\(\) has ids that are not in the vocabulary of 320",
    "infinite": r"logit processor probe: the result of row\(\) has biases that are not finite",
    "lengths": r"logit processor probe: the result of row\(\) has biases of shape \(2,\), not \(1,\)",
    "without": r"logit processor probe: the result of row\(\) has biases of shape \(2,\), not \(0,\)",
    "nothing": r"logit processors probe: there is no token that all of them allow",
}


def every_failure() -> Iterator[Any]:
    """Yield what fails and a drafter: behind guesses one failure of each kind, the others in the slow suite."""
    for what in SPOILT:
        yield what, "none"
        yield pytest.param(what, "ngram", marks=() if what in ("row", "extend", "nothing") else pytest.mark.slow)


@pytest.mark.parametrize(("what", "speculate"), list(every_failure()))
def test_a_processor_that_fails_ends_its_own_request(make: MakeEngine, what: str, speculate: str):
    engine = make(speculation__use=speculate)
    neighbours = [Request("the quick brown fox", GREEDY), Request(LOOP, probing(SAMPLED, 11)), Request(LOOP, SAMPLED)]
    alone = [bytes_of(engine, lambda request=request: engine.generate([request]))[0] for request in neighbours]
    for after in (1, 3):
        streams = []

        def run(after: int = after, streams: list[Any] = streams) -> None:
            spoilt = Request(LOOP, probing(GREEDY, (what, after)))
            streams += [engine.submit(request) for request in (*neighbours, spoilt, spoilt)]
            while engine.step():
                pass

        found = bytes_of(engine, run)
        if speculate == "none":  # else guesses ride in fewer rows
            assert [found[index] for index in range(3)] == alone
        assert [stream.result().token_ids for stream in streams[:3]] == tokens(engine, neighbours)
        for stream in streams[3:]:
            with pytest.raises(RequestError if what == "nothing" else PluginError, match=SPOILT[what]):
                stream.result()
            assert len(stream._output.tokens) == after
        assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_processor_that_fails_only_after_guesses_costs_only_the_guesses(make: MakeEngine):
    plain, guessing = make(), make(speculation__use="ngram")
    request = Request(LOOP, probing(replace(GREEDY, max_tokens=60), ("guesses", 0)))
    assert tokens(guessing, [request]) == tokens(plain, [request])
    assert guessing.generate([request])[0].usage.drafted_tokens > 0


@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_forced_tokens_save_steps_and_change_nothing(make: MakeEngine, speculate: str):
    engine = make(speculation__use=speculate)
    plain = [Request("the quick brown fox", SAMPLED), Request(LOOP, probing(SAMPLED, 11))]
    steps, found, usages = {}, {}, {}
    for what in ("unsaid", "forced", "wrong", "raises", "no ids", "no tokens", "nothing"):
        recorder = Recorder(engine)
        request = Request(LOOP, probing(replace(SAMPLED, max_tokens=60), (what, "forced")))
        [alone] = engine.generate([request])
        steps[what], usages[what] = len(recorder.rows), alone.usage
        found[what] = [alone.token_ids, *tokens(engine, [request, *plain])]
        engine.executable = recorder._inner
    assert all(tokens == found["unsaid"] for tokens in found.values())
    assert steps["forced"] < steps["unsaid"] / 2 and usages["forced"].accepted_tokens > 40
    if speculate == "none":
        assert usages["forced"].drafted_tokens == usages["forced"].accepted_tokens
        assert {steps[what] for what in ("raises", "no ids", "no tokens", "nothing")} == {60}
        assert usages["unsaid"].drafted_tokens == 0 < usages["wrong"].drafted_tokens


def test_an_invalid_processor_is_refused_at_submission(make: MakeEngine):
    engine = make()
    for argument, kind, text in (
        ("refused", RequestError, "probe: it is refused: say something else"),
        ("broken", PluginError, r"plugin prober: logit processor probe: make\(\) raised ValueError: by design"),
        ("none", PluginError, "plugin prober: logit processor probe: it has no extend"),
    ):
        with pytest.raises(kind, match=text):
            engine.submit("x", probing(GREEDY, argument))
    with pytest.raises(PluginError, match="logit processor prob: no plugin provides it: did you mean `probe`"):
        engine.generate("x", replace(GREEDY, processors=(("prob", 1),)))
    with pytest.raises(PluginError, match=r"logit processor penalties: make\(\) raised"):
        engine.generate("x", replace(GREEDY, processors=(("penalties", "many"),)))
    assert len(engine.generate("x", probing(GREEDY, 11))[0].token_ids) == 24


def test_a_processor_is_made_from_its_argument_the_prompt_and_the_vocabulary(make: MakeEngine):
    engine = make()
    engine.generate("the quick", probing(replace(GREEDY, max_tokens=1), 11))
    import probe_plugin  # type: ignore[import-not-found]

    assert probe_plugin.made == [(11, engine.tokenize("the quick"))]
    vocabulary = engine._submissions._processors._vocabulary
    assert (vocabulary.size, vocabulary.ends) == (VOCAB, (tiny_model.EOS,))
    assert vocabulary.tokenizer is engine.tokenizer
    assert (vocabulary.directory / "tokenizer.json").is_file()


@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_a_preempted_request_keeps_its_processors(make: MakeEngine, speculate: str, monkeypatch: pytest.MonkeyPatch):
    engine = make(speculation__use=speculate)
    requests = mix()[::-1]  # the last is preempted most
    expected = tokens(engine, requests)
    import probe_plugin

    before = len(probe_plugin.made)
    scheduler = preempting(engine, monkeypatch)
    assert tokens(engine, requests) == expected
    assert scheduler.preempted >= 2
    assert len(probe_plugin.made) - before == 4  # of four requests
    assert {tuple(prompt) for _, prompt in probe_plugin.made} == {LOOP}


@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_a_step_that_fails_in_the_middle_repeats_no_token(
    make: MakeEngine, speculate: str, monkeypatch: pytest.MonkeyPatch
):
    engine = make(speculation__use=speculate)
    expected = tokens(engine, mix())
    import probe_plugin

    def failing(name: str, owner: Any, error: BaseException, every: int) -> None:
        method, calls = getattr(owner, name), itertools.count(1)

        def fails(*arguments: Any) -> Any:
            result = method(*arguments)  # which has happened when it fails
            if next(calls) % every == 0:
                raise error
            return result

        monkeypatch.setattr(owner, name, fails)

    failing("commit", Scheduler, PluginError("made to fail"), 5)
    failing("extend", probe_plugin.Stateful, KeyboardInterrupt(), 50)
    failing("row", probe_plugin.Stateful, KeyboardInterrupt(), 17)
    streams = [engine.submit(request) for request in mix()]
    failures = 0
    while not all(stream.finished for stream in streams):
        try:
            engine.step()
        except (PluginError, KeyboardInterrupt):
            failures += 1
    assert failures > 5
    assert [stream.result().token_ids for stream in streams] == expected


def test_requests_without_processors_pay_nothing(make: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make()
    native, calls = _native.sample, []

    def sample(*args: Any, **kwargs: Any) -> None:
        calls.append(kwargs)
        native(*args, **kwargs)

    monkeypatch.setattr(_native, "sample", sample)
    engine.generate(["a", "b"], SAMPLED)
    assert calls and not any(calls)
    engine.generate(["a", "b"], probing(SAMPLED, 11))
    assert calls[-1].keys() == {"masks", "changes"}
    assert engine.submit("a", SAMPLED)._output.sequence.processors is None


def test_processors_run_beside_the_model_and_their_thread_ends_with_the_engine(make: MakeEngine):
    engine = make()
    running, seen, threads = threading.Event(), [], set()

    class Running(Recorder):
        def run(self, batch: Any) -> Any:
            running.set()
            try:
                while self.steps and len(seen) <= self.steps:
                    time.sleep(0.001)
                return super().run(batch)
            finally:
                self.steps += 1
                running.clear()

        steps = 0

    Running(engine)

    class Watching:
        def extend(self, tokens: Any) -> None:
            pass

        def row(self, guesses: Any) -> None:
            threads.add(threading.get_native_id())
            seen.append(bool(seen) and running.wait(10))  # those of the first step are asked behind it

    maker = type("Kind", (), {"make": lambda *_: Watching()})()
    engine._submissions._processors._kinds["watching"] = maker
    engine.generate("x", replace(GREEDY, max_tokens=6, processors=(("watching", None),)))
    assert seen == [False] + [True] * 5
    engine.close()
    [thread] = threads
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{thread}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/self/task/{thread}").exists()


def test_an_abandoned_step_leaves_its_processors_to_the_next(make: MakeEngine):
    engine = make(speculation__use="ngram")
    requests = [request for request in mix() if request.params.processors]
    expected = tokens(engine, requests)
    import probe_plugin

    inner, runs = engine.executable, itertools.count(1)

    class Failing(Recorder):
        def run(self, batch: Any) -> Any:
            if next(runs) % 3 == 0:
                raise InterruptedStepError("step", "made to fail")
            return inner.run(batch)

    class Slow(probe_plugin.Stateful):  # type: ignore[misc]
        def row(self, guesses: Any) -> Any:
            time.sleep(0.003)  # so that they are asked still when the step has failed
            return super().row(guesses)

    Failing(engine)
    probe_plugin.Stateful = Slow
    streams = [engine.submit(request) for request in requests]
    while not all(stream.finished for stream in streams):
        with contextlib.suppress(InterruptedStepError):
            engine.step()
        for stream in streams:
            sequence = stream._output.sequence
            if not stream.finished and next(runs) % 5 == 0:  # as a scheduler that preempts
                sequence.processors.restart()  # type: ignore[union-attr]
    assert [stream.result().token_ids for stream in streams] == expected


def test_prompt_logprobs_come_from_the_models_logits(make: MakeEngine):
    engine = make(scheduler__max_batch_tokens=9)
    wanted = replace(GREEDY, prompt_logprobs=2, logprobs=1)
    [plain], [probed] = engine.generate([LOOP * 3], wanted), engine.generate([LOOP * 3], probing(wanted, 11))
    assert probed.prompt_logprobs == plain.prompt_logprobs
    assert probed.logprobs[0].top == plain.logprobs[0].top
    assert probed.token_ids == engine.generate([LOOP * 3], probing(GREEDY, 11))[0].token_ids


def test_a_mask_has_exactly_the_bits_of_its_ids():
    vocabulary = Vocabulary(None, 70, (), Path())  # type: ignore[arg-type]
    mask = vocabulary.mask([0, 31, 32, 69])
    assert mask.dtype == np.uint32 and mask.tolist() == [1 | 1 << 31, 1, 1 << 5]
    assert vocabulary.mask(()).tolist() == [0, 0, 0]
    for ids in ([70], [-1]):
        with pytest.raises(ValueError, match="not all in the vocabulary of 70"):
            vocabulary.mask(ids)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""),
        (Adjustment(), ""),
        (Adjustment(np.zeros(3, np.uint32), np.zeros(0, np.int32)), ""),
        (3, "is a int, not an Adjustment"),
        (Adjustment([1, 2, 3]), "has allowed that are a list, not an array"),  # type: ignore[arg-type]
        (Adjustment(np.zeros(3, np.int32)), "has allowed of int32, not uint32"),  # type: ignore[arg-type]
        (Adjustment(np.zeros((3, 1), np.uint32)), r"has allowed of shape (3, 1), not (3,)"),
        (Adjustment(ids=np.zeros((1, 1), np.int32)), r"has ids of shape (1, 1), not (n,)"),
        (Adjustment(ids=np.zeros(1, np.int64)), "has ids of int64, not int32"),  # type: ignore[arg-type]
        (Adjustment(ids=np.zeros(1, np.int32), penalties=np.zeros(1, np.float32)),
         "has penalties that are not above 0"),
        (Adjustment(ids=np.zeros(1, np.int32), penalties=np.full(1, np.nan, np.float32)),
         "has penalties that are not finite"),
    ],
)  # fmt: skip
def test_an_invalid_adjustment_is_described(given: Any, text: str):
    assert wrong(given, 70) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids: there are none: give one at least"),
        ({"allowed_token_ids": (1.5,)}, "allowed_token_ids: 1.5 is not an integer"),
        ({"allowed_token_ids": 5}, "allowed_token_ids: 5 is not a sequence"),
        ({"bad_words_ids": ((),)}, "bad_words_ids: a word has no token"),
        ({"bad_words_ids": (5,)}, "bad_words_ids: 5 is not a sequence"),
        ({"bad_words_ids": ((1,),) * 1025}, "bad_words_ids: 1025 words of together 1025 tokens: give at most 1024"),
        ({"min_tokens": -1}, "min_tokens: -1 is not an integer from 0 to 256"),
        ({"min_tokens": 257}, "min_tokens: 257 is not an integer from 0 to 256: it cannot be more than max_tokens"),
        ({"logit_bias": {1: "a"}}, "logit_bias: 'a' is out of range"),
        ({"logit_bias": {1: 1e39}}, "logit_bias: 1e+39 is out of range"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias: '1' is not an integer"),
        ({"logit_bias": (5,)}, "logit_bias: 5 is no pair: give ((id, bias), ...)"),
        ({"logit_bias": ((5, 1), (5, 1))}, "logit_bias: the same token is named twice"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0 is out of range: 1 changes nothing"),
        ({"presence_penalty": 2.1}, "presence_penalty: 2.1 is out of range: it must be from -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty: nan is out of range"),
        ({"processors": ("choice",)}, "processors: 'choice' is no pair: give names with their arguments"),
        ({"processors": ((1, 2),)}, "processors: 1 is no name"),
        ({"processors": (("", 2),)}, "processors: '' is no name"),
        ({"processors": (("a", 2),) * 17}, "processors: there are 17: name at most 16"),
    ],
)
def test_an_impossible_parameter_is_refused(values: dict[str, Any], text: str):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    "values",
    [{"allowed_token_ids": (5, 320)}, {"bad_words_ids": ((5, 320), (7,))}, {"logit_bias": ((320, -1.0),)}],
    ids=lambda values: next(iter(values)),
)
def test_a_token_outside_the_vocabulary_is_refused(make_engine: MakeEngine, values: dict[str, Any]):
    with pytest.raises(InfengError, match=f"{next(iter(values))}: token 320 is not in the vocabulary of 320"):
        make_engine().generate("x", replace(GREEDY, **values))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps wait for no processor: one without an answer when the logits are ready is late."""
    for name in ("PATIENCE", "PATIENCE_ALONE"):
        monkeypatch.setattr(processor_thread, name, 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_late_processors_change_no_token(make: MakeEngine, speculate: str, monkeypatch: pytest.MonkeyPatch):
    engine = make(speculation__use=speculate)
    reporting = Request(LOOP, replace(probing(SAMPLED, 11), prompt_logprobs=0, logprobs=0))
    late = [engine.generate([*mix(), reporting])]
    counts = [len(answer) for answer in late]
    drafted = [one.usage.drafted_tokens for one in late[0]]
    for name in ("PATIENCE", "PATIENCE_ALONE"):
        monkeypatch.setattr(processor_thread, name, 60.0)
    awaited = engine.generate([*mix(), reporting])
    assert [one.token_ids for one in late[0]] == [one.token_ids for one in awaited] and counts == [13]
    assert late[0][-1].prompt_logprobs == awaited[-1].prompt_logprobs
    assert all(one.usage.accepted_tokens <= given for one, given in zip(late[0], drafted, strict=True))


class Blocking:
    """Answers once it may."""

    def __init__(self) -> None:
        self.may, self.calls = threading.Event(), 0

    def extend(self, tokens: Any) -> None:
        pass

    def row(self, guesses: Any) -> None:
        self.calls += 1
        assert self.may.wait(60)


def named(engine: Engine, processor: Any) -> SamplingParams:
    """Return parameters that have ``processor``."""
    maker = type("Kind", (), {"make": lambda *_: processor})()
    engine._submissions._processors._kinds["made"] = maker
    return replace(GREEDY, max_tokens=4, processors=(("made", None),))


@pytest.mark.usefixtures("impatient")
def test_a_hanging_processor_delays_only_its_own_request(make: MakeEngine):
    engine, blocking = make(), Blocking()
    alone = engine.generate(LOOP, replace(GREEDY, max_tokens=4))
    stuck = engine.submit(LOOP, named(engine, blocking))
    assert engine.generate("the quick brown fox", SAMPLED)[0].finish_reason == "length"
    while not blocking.calls:  # steps that wait for nothing may be over before the processor's thread runs
        engine.step()
    assert not stuck.finished and blocking.calls == 1  # and is not asked twice for the same
    blocking.may.set()
    assert stuck.result().token_ids == alone[0].token_ids


@pytest.mark.usefixtures("impatient")
def test_a_request_whose_processor_never_returns_ends_and_others_continue(
    make: MakeEngine, monkeypatch: pytest.MonkeyPatch
):
    engine, blocking = make(), Blocking()
    stuck = engine.submit(LOOP, named(engine, blocking))
    while not blocking.calls:
        engine.step()
    monkeypatch.setattr(processor_thread, "LOST", 0.0)
    engine.step()
    monkeypatch.setattr(processor_thread, "LOST", 60.0)
    asked = Request(LOOP, probing(GREEDY, 11))
    assert len(tokens(engine, [asked])[0]) == GREEDY.max_tokens
    with pytest.raises(PluginError, match="a call of it does not return"):
        stuck.result()
    blocking.may.set()


@pytest.mark.usefixtures("impatient")
def test_without_a_thread_the_step_calls_processors_itself(make: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    requests = [Request(LOOP, probing(SAMPLED, 11)), Request(LOOP, probing(GREEDY, ("row", 5))), Request(LOOP, GREEDY)]

    def answers(engine: Engine) -> list[Any]:
        streams = [engine.submit(request) for request in requests]
        with pytest.raises(PluginError, match="by zero"):
            streams[1].result()
        return [streams[0].result().token_ids, streams[2].result().token_ids]

    def refuse(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    engine = make()
    with monkeypatch.context() as patch:
        patch.setattr(processor_thread._thread, "start_new_thread", refuse)
        found = answers(engine)
        assert engine._watchdog._helper() is None
    assert answers(engine) == found
    assert engine._watchdog._helper() is not None, "a later step has tried again"


def test_fast_processors_are_called_before_slow_ones():
    class Known(Blocking):
        def __init__(self, cost: float) -> None:
            self.cost = cost

        def rows(self, sequence: Any, guesses: Any) -> list[Any]:
            order.append(self.cost)
            return [[]]

    order: list[float] = []
    made = processor_thread.PendingCalls.__new__(processor_thread.PendingCalls)
    made._questions = [
        processor_thread.ProcessorCall(row, None, Known(cost), ()) for row, cost in enumerate((0.3, 0.0, 0.1))
    ]  # type: ignore[arg-type]
    made._answers, made._is_left, made._left_quick, made._is_done = {}, False, 1, False
    made._bell = threading.Lock()
    worker = type("Worker", (), {"asked": None})()
    made.run(worker)
    assert order == [0.0, 0.1, 0.3] and sorted(made._answers) == [0, 1, 2] and worker.asked is None


def test_at_most_as_many_forced_tokens_are_used_as_a_step_takes(make: MakeEngine):
    class Endless(Blocking):
        taken = 0

        def row(self, guesses: Any) -> None:
            return None

        def forced(self) -> Iterator[int]:
            while True:
                self.taken += 1
                yield 5

    engine, endless = make(), Endless()
    engine.generate(LOOP, replace(named(engine, endless), max_tokens=2))
    assert 0 < endless.taken <= 2 * MOST_FORCED


@pytest.mark.parametrize("given", [[10**6000], [-1], ["5"], None, 7], ids=["huge", "negative", "text", "none", "one"])
def test_invalid_forced_tokens_cost_only_guesses(make: MakeEngine, given: Any):
    class Odd(Blocking):
        def row(self, guesses: Any) -> None:
            return None

        def forced(self) -> Any:
            return given

    engine = make()
    plain = engine.generate(LOOP, replace(GREEDY, max_tokens=4))
    assert engine.generate(LOOP, named(engine, Odd()))[0].token_ids == plain[0].token_ids


def test_too_many_changes_and_an_exiting_processor_end_their_request(make: MakeEngine):
    ids = np.zeros(VOCAB + 1, np.int32)
    assert wrong(Adjustment(ids=ids), VOCAB) == f"has {VOCAB + 1} ids, and the vocabulary {VOCAB}"
    assert wrong(Adjustment(ids=ids[1:]), VOCAB) == ""

    class Exits(Blocking):
        def row(self, guesses: Any) -> None:
            raise SystemExit(3)

    engine = make()
    with pytest.raises(PluginError, match="raised SystemExit: 3"):
        engine.generate(LOOP, named(engine, Exits()))
