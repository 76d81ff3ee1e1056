"""Speculation changes only the number of steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny_adapter
import tiny_model
from drawn import examples
from engine_parts import MakeEngine, Recorder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infeng_suffix import ngrams

from infeng_core import Completion, Engine, Request, SamplingParams
from infeng_core.errors import KernelError, ManifestError, PluginError, UsageError
from infeng_core.requests import sampler
from infeng_core.requests.output import Event
from infeng_core.scheduling.cost import CostModel, StepShape
from infeng_core.scheduling.drafts import DraftedRequest, Guesses, parse
from infeng_core.scheduling.payoff import Payoff
from infeng_core.scheduling.scheduler import Scheduler

LOOP = (5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7)
BASE = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, seed=3)
WAYS = {
    "greedy": BASE,
    "cold": replace(BASE, temperature=0.2),
    "warm": replace(BASE, temperature=0.7),
    "top_k": replace(BASE, temperature=0.6, top_k=3),
    "top_p": replace(BASE, temperature=0.6, top_p=0.5, seed=2**63),
    "min_p": replace(BASE, temperature=0.5, min_p=0.2),
    "all": replace(BASE, temperature=0.8, top_k=20, top_p=0.8, min_p=0.05, seed=11),
}
"""Random weights repeat themselves where sampling is narrow; one hot request is in every mix."""


def mix(params: SamplingParams) -> list[Request]:
    """Return a batch of requests of all kinds, with ``params`` for most."""
    random = np.random.default_rng(4)
    prompts = [LOOP, (3,), *(tuple(random.integers(2, 300, length).tolist()) for length in (2, 17, 40, 61))]
    hot = replace(params, temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
    return [Request(prompt, replace(params, max_tokens=20 + 9 * i)) for i, prompt in enumerate(prompts)] + [
        Request(LOOP, hot)
    ]


def facts(completion: Completion) -> tuple[Any, ...]:
    """Return what must not depend on speculation."""
    usage = completion.usage
    return completion.text, completion.token_ids, completion.finish_reason, completion.seed, usage.completion_tokens


def pieces(events: Iterator[Event]) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
    """Return the events of every request."""
    found: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for event in events:
        found.setdefault(event.index, []).append((event.text, event.token_ids))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [512, 9])  # everything at once; prompts in chunks, guesses only where room is left
def test_texts_tokens_and_events_are_the_same(make_engine: MakeEngine, way: str, rows: int):
    plain = make_engine(scheduler__max_batch_tokens=rows)
    guessing = make_engine(scheduler__max_batch_tokens=rows, speculation__use="ngram")
    expected, found = plain.generate(mix(WAYS[way])), guessing.generate(mix(WAYS[way]))
    assert list(map(facts, found)) == list(map(facts, expected))
    assert pieces(guessing.stream(mix(WAYS[way]))) == pieces(plain.stream(mix(WAYS[way])))
    assert sum(completion.usage.drafted_tokens for completion in found) > 0
    assert guessing.scheduler.free_blocks == guessing.scheduler.pool.total


@pytest.mark.parametrize(
    ("weights", "kv"), [("f32", "f32"), ("int8-row", "int8"), ("int4-g64", "int8"), ("int4-g64", "int4h")]
)
def test_logits_of_right_guesses_are_the_same_to_the_byte(make_engine: MakeEngine, weights: str, kv: str):
    def rows(**more: Any) -> tuple[dict[int, bytes], int]:
        engine = make_engine(model__format=weights, kv_cache__dtype=kv, **more)
        found: dict[int, bytes] = {}
        inner, steps = engine.executable, 0

        class Positions(Recorder):
            def run(self, batch: Any) -> Any:
                nonlocal steps
                steps += 1
                logits = inner.run(batch)
                for row, out in zip(batch.sample_rows, logits, strict=True):
                    found[int(batch.positions[row])] = out.tobytes()  # one after a wrong guess is replaced later
                return logits

        Positions(engine)
        [completion] = engine.generate(LOOP, BASE)
        end = completion.usage.total_tokens - 1
        return {position: data for position, data in found.items() if position < end}, steps

    plain, plain_steps = rows()
    guessed, guessed_steps = rows(speculation__use="ngram", speculation__tokens=6)
    assert guessed == plain
    assert guessed_steps < plain_steps


def test_repetitive_text_takes_fewer_steps_and_reports_the_guesses(make_engine: MakeEngine):
    engine = make_engine(speculation__use="ngram", speculation__tokens=8)
    recorder = Recorder(engine)
    [completion] = engine.generate(LOOP, replace(BASE, max_tokens=150))
    usage = completion.usage
    assert len(recorder.rows) < 75
    assert 150 - len(recorder.rows) == usage.accepted_tokens <= usage.drafted_tokens
    assert usage.acceptance == usage.accepted_tokens / usage.drafted_tokens > 0.5
    [plain] = make_engine().generate(LOOP, BASE)
    assert (plain.usage.drafted_tokens, plain.usage.accepted_tokens, plain.usage.acceptance) == (0, 0, None)


def test_every_end_inside_right_guesses_gives_the_same_text(make_engine: MakeEngine):
    plain, guessing = make_engine(), make_engine(speculation__use="ngram", speculation__tokens=7)
    [whole] = plain.generate(LOOP, BASE)
    ids, text = whole.token_ids, whole.text
    asked = [Request(LOOP, replace(BASE, max_tokens=count)) for count in range(1, 24)]
    asked += [Request(LOOP, replace(BASE, stop_token_ids=(token,))) for token in dict.fromkeys(ids)]
    asked += [Request(LOOP, replace(BASE, stop=(text[i : i + 2],))) for i in range(0, len(text) - 2, 3)]
    asked += [Request(LOOP * 18 + LOOP[: 12 - cut], replace(BASE, max_tokens=500)) for cut in range(8)]  # the context
    expected = [plain.generate([request])[0] for request in asked]
    found = [guessing.generate([request])[0] for request in asked]
    assert list(map(facts, found)) == list(map(facts, expected))
    assert {completion.finish_reason for completion in found} == {"stop", "length"}
    assert sum(completion.usage.accepted_tokens for completion in found) > 100
    assert list(map(facts, guessing.generate(asked))) == list(map(facts, expected))


def test_the_models_end_token_among_guesses_ends_the_text(make_engine: MakeEngine, tmp_path: Path):
    [free] = make_engine().generate(LOOP, BASE)
    end = max(free.token_ids[20:], key=free.token_ids.index)
    model = tiny_model.write(tmp_path / "model", tiny_model.Shape(extra={"eos_token_id": end}))
    params = replace(BASE, ignore_eos=False)
    [expected] = make_engine(model).generate(LOOP, params)
    [found] = make_engine(model, speculation__use="ngram").generate(LOOP, params)
    assert facts(found) == facts(expected)
    assert found.token_ids[-1] == end


def test_a_cancelled_text_is_a_prefix_of_the_full_text(make_engine: MakeEngine):
    plain, guessing = make_engine(), make_engine(speculation__use="ngram")
    [whole] = plain.generate(LOOP, BASE)
    for steps in range(1, 9):
        stream = guessing.submit(LOOP, BASE)
        for _ in range(steps):
            guessing.step()
        stream.cancel()
        cut = stream.result()
        count = len(cut.token_ids)
        assert count >= steps
        assert (cut.finish_reason, cut.token_ids) == ("cancelled", whole.token_ids[:count])
    assert guessing.scheduler.free_blocks == guessing.scheduler.pool.total


def test_steps_that_fail_or_are_interrupted_change_nothing(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    expected = make_engine().generate(mix(BASE))
    engine = make_engine(speculation__use="ngram")
    inner, commit, calls = engine.executable, Scheduler.commit, itertools.count()

    class Failing(Recorder):
        def run(self, batch: Any) -> Any:
            logits = inner.run(batch)
            if next(calls) % 5 == 1:
                raise KernelError("step", "made to fail")
            return logits

    def interrupted(*arguments: Any) -> None:
        hit = next(calls) % 3
        if hit == 0:
            raise KeyboardInterrupt
        commit(*arguments)
        if hit == 1:
            raise KeyboardInterrupt

    Failing(engine)
    monkeypatch.setattr(Scheduler, "commit", interrupted)
    streams = [engine.submit(request) for request in mix(BASE)]
    failures, is_busy = 0, True
    while is_busy:
        try:
            is_busy = engine.step()
        except (KernelError, KeyboardInterrupt):
            failures += 1
    assert failures > 10
    assert [facts(stream.result()) for stream in streams] == list(map(facts, expected))


# ---------------------------------------------------------------------------------------- against the plain engine ---

request = st.builds(
    Request,
    st.lists(st.integers(2, 9), min_size=1, max_size=40).map(tuple),  # few different tokens: much repeats
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        top_k=st.sampled_from([0, 2, 40]),
        top_p=st.sampled_from([1.0, 0.6]),
        min_p=st.sampled_from([0.0, 0.1]),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.integers(1, 40),
        stop=st.lists(st.text("aeiou ", min_size=1, max_size=2), max_size=2).map(tuple),
        stop_token_ids=st.lists(st.integers(2, 300), max_size=3).map(tuple),
    ),
)
arrivals = st.lists(st.tuples(st.integers(0, 10), request), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[Engine, Engine]]]:
    """A plain and a guessing engine of each of several sizes."""
    model = tiny_model.write(tmp_path_factory.mktemp("pairs"))
    made = []
    for rows, running, tokens in ((64, 4, 3), (7, 5, 4), (3, 2, 16)):
        sizes = {"threads.count": 1, "scheduler.max_batch_tokens": rows, "scheduler.max_running": running}
        made.append((Engine(model, overrides=sizes), Engine(model, speculate=f"ngram:{tokens}", overrides={**sizes})))
    yield made
    for pair in made:
        for engine in pair:
            engine.close()


def arrive(engine: Engine, arriving: Sequence[tuple[int, Request]]) -> list[Completion]:
    """Submit every request before the step at which it arrives; return their completions."""
    streams = {}
    for step in range(11):
        for index, (when, asked) in enumerate(arriving):
            if when == step:
                streams[index] = engine.submit(asked)
        engine.step()
    return [streams[index].result() for index in range(len(arriving))]


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arriving=arrivals, size=st.integers(0, 2))
def test_any_mix_of_requests_gives_the_tokens_of_an_engine_without_speculation(
    pairs: list[tuple[Engine, Engine]], arriving: list[tuple[int, Request]], size: int
):
    plain, guessing = pairs[size]
    assert list(map(facts, arrive(guessing, arriving))) == list(map(facts, arrive(plain, arriving)))
    assert guessing.scheduler.free_blocks == guessing.scheduler.pool.total


@pytest.mark.parametrize(
    "broken",
    [
        lambda drawn, guesses: drawn,  # every guess counts
        lambda drawn, guesses: drawn[: 1 + sum(a == b for a, b in zip(drawn, guesses, strict=False))],  # any order
        lambda drawn, guesses: [*guesses[: drawn[0] == guesses[0]], *drawn[:1]],  # shifted by one
    ],
)
def test_a_broken_acceptance_rule_is_detected(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, broken: Any):
    expected = make_engine().generate(mix(WAYS["warm"]))
    monkeypatch.setattr(sampler, "confirmed", broken)
    found = make_engine(speculation__use="ngram").generate(mix(WAYS["warm"]))
    assert list(map(facts, found)) != list(map(facts, expected))


# ------------------------------------------------------------------------------------------------------- the parts ---


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60), cut=st.integers(0, 60), count=st.integers(1, 9))
def test_a_draft_repeats_what_followed_the_longest_match(tokens: list[int], cut: int, count: int):
    drafter = ngrams.Ngrams(tokens[:cut])
    drafter.extend(tokens[cut:])
    last = len(tokens) - 1
    places = [i for i in range(last - 1, 0, -1) if tokens[i - 1 : i + 1] == tokens[last - 1 :]][: ngrams.Ngrams.PLACES]

    def same(place: int) -> int:
        lengths = itertools.takewhile(lambda n: tokens[place - n] == tokens[last - n], range(place + 1))
        return min(len(list(lengths)), ngrams.Ngrams.LONGEST)

    expected: list[int] = []
    if places:
        best = max(places, key=lambda place: (same(place), place))
        longer = list(tokens)
        for i in range(count):
            longer.append(longer[best + 1 + i])
        expected = longer[last + 1 :]
    assert drafter.draft(count) == expected


class Always:
    """A drafter that guesses 1, 2, 3, ..."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn nothing."""

    def draft(self, count: int) -> list[int]:
        """Return ``count`` guesses."""
        return list(range(1, count + 1))


def widths(most: int, rights: list[int]) -> list[int]:
    """Return how long each draft is when ``rights[i]`` tokens of the i-th are right, or all of them if it has fewer."""
    guesses = Guesses(Always(), most)
    guesses.follow([0], 0)
    found = []
    for right in rights:
        drafted = len(guesses.draft)
        found.append(drafted)
        guesses.follow([0] * (1 + min(right, drafted)), drafted)
    return found


def test_drafts_grow_by_one_after_right_guesses_and_pauses_double_after_wrong_ones():
    assert widths(4, [9, 9, 2, 9, 9]) == [4, 4, 4, 3, 4]
    assert widths(4, [1, 0, 9, 9, 9, 9, 9]) == [4, 2, 0, 1, 2, 3, 4]
    lost = widths(4, [0] * 200)
    tries = [i for i, width in enumerate(lost) if width]
    assert [b - a - 1 for a, b in itertools.pairwise(tries)][:8] == [1, 2, 4, 8, 16, 32, 32, 32]
    assert widths(4, [0, 0, 0, 9, 9, 9, 9]) == [4, 0, 1, 0, 0, 1, 2]


def test_speculation_is_set_by_name_and_count(make_engine: MakeEngine):
    assert parse(None) == {}
    assert parse("ngram") == {"speculation.use": "ngram"}
    assert parse("ngram:7") == {"speculation.use": "ngram", "speculation.tokens": 7}
    for text in ("ngram:", "ngram:x", "ngram:-1", "ngram:²"):
        with pytest.raises(UsageError, match="is not a number of tokens: say ngram"):
            parse(text)
    with pytest.raises(PluginError, match="drafter ngrams: no plugin provides it: did you mean `ngram`"):
        make_engine(speculation__use="ngrams")
    with pytest.raises(ManifestError, match="must be from 1 to 16"):
        make_engine(speculation__tokens=17)


# --------------------------------------------------------------------------- what a drafter may know, and may say ---


class Watching:
    """A drafter that records what it is told, and guesses what a text before it said."""

    made: ClassVar[list[Watching]] = []
    known: Sequence[int] = ()

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.states: dict[int, Any] = {}
        self.calls: list[str] = []
        self.answer: list[int] | None = None
        self.made.append(self)

    def begin(self, request: DraftedRequest) -> None:
        self.calls.append("begin")
        self.request = request

    def see(self, position: int, states: Any) -> None:
        self.calls.append("see")
        assert states.dtype == np.float32
        self.states |= {position + index: row.copy() for index, row in enumerate(states)}

    def extend(self, tokens: Sequence[int]) -> None:
        self.calls.append("extend")
        known = len(self.prompt) + len(self.tokens)
        assert {known - 1 + index for index in range(len(tokens))} <= self.states.keys()
        self.tokens += tokens

    def draft(self, count: int) -> list[int]:
        after = len(self.tokens)
        guesses = [*self.known[after : after + count]]
        if after % 3 == 0 and guesses:  # some are wrong
            wrong = after % 2 * (len(guesses) - 1)
            guesses[wrong] = (guesses[wrong] + 1) % 300
        return guesses

    def end(self, tokens: Sequence[int]) -> None:
        self.calls.append("end")
        self.answer = list(tokens)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> type[Watching]:
    """Put ``Watching`` in the place of ``ngram``."""
    monkeypatch.setattr(ngrams, "Ngrams", Watching)
    monkeypatch.setattr(Watching, "made", [])
    monkeypatch.setattr(Watching, "known", ())
    return Watching


FLOAT = {"model__format": "f32", "model__formats": {}, "kv_cache__dtype": "f32", "kv_cache__prefix": False}


@pytest.mark.parametrize("rows", [512, 5])
def test_a_drafter_sees_the_state_of_every_position_that_led_to_a_token(
    make_engine: MakeEngine, watching: type[Watching], rows: int
):
    [plain] = make_engine(**FLOAT).generate(LOOP, BASE)
    watching.known = plain.token_ids
    engine = make_engine(speculation__use="ngram", scheduler__max_batch_tokens=rows, **FLOAT)
    [found, _, _] = engine.generate([Request(LOOP, BASE), Request(LOOP[:4], BASE), Request((3,), BASE)])
    assert found.token_ids == plain.token_ids and 0 < found.usage.accepted_tokens < found.usage.drafted_tokens
    one = watching.made[0]
    text = [*LOOP, *found.token_ids]
    assert sorted(one.states) == list(range(len(text) - 1)), "none of wrong guesses, all of the prompt"
    head = engine.model.matrix("model.embed_tokens.weight")  # tied
    drawn = [int((head @ one.states[position]).argmax()) for position in range(len(LOOP) - 1, len(text) - 1)]
    assert drawn == list(found.token_ids), "each token is what the head says of the state before it"
    assert one.calls[0] == "begin" and one.calls[-1] == "end" and one.calls.count("begin") == 1
    assert one.answer == list(found.token_ids)


def test_states_are_computed_for_drafters_that_see_and_not_for_others(
    make_engine: MakeEngine, watching: type[Watching]
):
    class Blind(Watching):
        see = None  # type: ignore[assignment]

        def extend(self, tokens: Sequence[int]) -> None:
            self.tokens += tokens

    def wanted(engine: Engine) -> set[bool]:
        inner, found = engine.executable, set()

        class Looking(Recorder):
            def run(self, batch: Any) -> Any:
                found.add(batch.hidden)
                return inner.run(batch)

        Looking(engine)
        engine.generate([LOOP, (3,)], BASE)
        return found

    assert wanted(make_engine(speculation__use="ngram")) == {True}
    assert wanted(make_engine()) == {False}
    ngrams.Ngrams = Blind  # type: ignore[assignment, misc]  # the fixture restores it
    assert wanted(make_engine(speculation__use="ngram")) == {False}


def test_a_drafter_that_sees_is_refused_by_a_backend_without_states(
    make_engine: MakeEngine, watching: type[Watching], monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine(speculation__use="ngram")
    monkeypatch.setattr(type(engine.executable), "has_hidden_states", False)
    with pytest.raises(PluginError, match=r"drafter ngram: it needs hidden states, and backend native has none"):
        engine.generate(LOOP, BASE)


def test_a_drafter_knows_its_owner_and_the_contents_of_adapters(
    make_engine: MakeEngine, watching: type[Watching], tmp_path: Path
):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for name, seed in (("a", 0), ("b", 1))}
    engine = make_engine(adapters__paths=paths, speculation__use="ngram")
    requests = [
        Request(LOOP, BASE, tenant="x", cache_salt="s"),
        Request(LOOP, BASE, adapter="a"),
        Request(LOOP, BASE, adapter=(("b", 0.5), ("a", 1.0))),
    ]
    engine.generate(requests)
    base, one, both = (found.request for found in watching.made)
    assert (base.tenant, base.cache_salt, base.adapters) == ("x", "s", ())
    ids = {info.name: info.id for info in engine.adapters.infos()}
    assert one.adapters == ((ids["a"], 1.0),)
    assert both.adapters == ((ids["b"], 0.5), (ids["a"], 1.0))


@pytest.mark.slow
def test_a_drafter_that_fails_at_any_call_leaves_its_request_alone(
    make_engine: MakeEngine, watching: type[Watching], monkeypatch: pytest.MonkeyPatch
):
    [plain] = make_engine().generate(LOOP, BASE)
    for method in ("begin", "see", "extend", "draft", "end"):
        with monkeypatch.context() as patched:
            patched.setattr(watching, method, lambda self, *arguments: 1 / 0)
            [found] = make_engine(speculation__use="ngram").generate(LOOP, BASE)
        assert found.token_ids == plain.token_ids


def test_every_end_is_told_once_with_the_answer(make_engine: MakeEngine, watching: type[Watching]):
    engine = make_engine(speculation__use="ngram", scheduler__max_running=1)
    running, waiting = engine.submit(LOOP, BASE), engine.submit(LOOP, BASE)
    for _ in range(4):
        engine.step()
    running.cancel()
    waiting.cancel()
    cut = running.result()
    first, second = watching.made
    assert first.answer == list(cut.token_ids) and first.calls.count("end") == 1
    assert second.answer is None and second.calls == [], "one that never ran is told nothing"


def test_a_drafter_that_paces_itself_is_asked_in_every_step_for_all_it_may_have():
    class Paced(Always):
        paces_itself = True
        most_tokens = 9

    guesses = Guesses(Paced(), None)
    guesses.follow([0], 0)
    for _ in range(20):
        assert len(guesses.draft) == 9
        guesses.follow([0], len(guesses.draft))
    assert len(Guesses(Paced(), 3).draft) == 0
    for wrong in (0, 17, "4", None):
        with pytest.raises(PluginError, match="its most_tokens is"):
            Guesses(type("Wrong", (Paced,), {"most_tokens": wrong})(), None)
    for most, expected in ((None, 4), (7, 7)):
        plain = Guesses(Always(), most)
        plain.follow([0], 0)
        assert len(plain.draft) == expected


# ---------------------------------------------------------------------------------------------------- what pays ---


class Machine:
    """A scheduler as far as ``Payoff`` looks at it: a step of n rows takes ``fixed + each n`` seconds."""

    def __init__(self, running: int, fixed: float, each: float, seen: Sequence[int] = (1, 3, 9, 20, 40)) -> None:
        self.running = running
        self.shape = StepShape(running, running, 0)
        self.costs = CostModel()
        for rows in seen:
            for _ in range(8):
                self.costs.observe(StepShape(rows, rows, 0), fixed + each * rows)
        self.costs.fit()

    def pays(self, *chances: float) -> int:
        return Payoff(lambda: self)(chances)  # type: ignore[arg-type, return-value]


def test_more_guesses_pay_where_rows_are_cheap_and_chances_good():
    free, dear = Machine(1, 1.0, 0.001), Machine(1, 0.01, 1.0)
    assert free.pays(*[0.9] * 16) == 16
    assert dear.pays(*[0.9] * 16) == 0, "a guess costs a step, and gives less than one token"
    half = Machine(1, 1.0, 0.1)
    counts = [half.pays(*[chance] * 16) for chance in (0.05, 0.3, 0.6, 0.8, 0.95)]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] >= 8
    assert half.pays() == 0
    for chance in (0.3, 0.6, 0.8, 0.95):  # by the definition
        rates = [(1 + sum(chance**step for step in range(1, k + 1))) / (1.0 + 0.1 * (1 + k)) for k in range(17)]
        assert half.pays(*[chance] * 16) == pytest.approx(int(np.argmax(rates)), abs=1)


def test_a_full_batch_guesses_less_than_one_request():
    counts = [Machine(running, 1.0, 0.05).pays(*[0.8] * 16) for running in (1, 4, 16, 32)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1]


def test_before_steps_with_guesses_were_seen_their_price_is_assumed():
    assert Machine(1, 1.0, 1.0, seen=(1,)).pays(*[0.9] * 4) == 4
    assert Machine(1, 1.0, 1.0, seen=()).pays(*[0.9] * 4) == 4
    assert Machine(1, 1.0, 1.0).pays(*[0.9] * 4) < 4
    assert Machine(1, 1.0, 1.0, seen=(1,)).pays(0.01) == 0
