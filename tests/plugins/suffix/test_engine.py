"""Suffix drafts in an engine: the same bytes in fewer steps, and nothing of one tenant in another's steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, Recorder, preempting
from infeng_suffix import store as stores
from infeng_suffix.drafter import SuffixDrafter
from infeng_suffix.store import Store

from infeng_core import Engine, Request, SamplingParams
from infeng_core.errors import KernelError
from infeng_core.scheduling.payoff import Payoff

LOOP = (5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7)
GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, seed=3)
WAYS = {
    "greedy": GREEDY,
    "warm": replace(GREEDY, temperature=0.7, top_p=0.9),
    "hot": replace(GREEDY, temperature=1.3, seed=2**63),
    "penalized": replace(GREEDY, temperature=0.4, repetition_penalty=1.1, logprobs=2),
}
A, B = (60, 61, 62), (70, 71)


@pytest.fixture(autouse=True)
def every_guess_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which guesses pay depends on measured times; the numbers of steps here must not."""
    monkeypatch.setattr(Payoff, "__call__", lambda _payoff, chances: len(chances))


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, str]:
    """Two plain adapters and an activated one."""
    made = {
        "a": tiny_adapter.write(tmp_path / "a", 0),
        "b": tiny_adapter.write(tmp_path / "b", 1),
        "late": tiny_adapter.write(tmp_path / "late", 2, invocation=A),
    }
    return {name: str(path) for name, path in made.items()}


def mix(params: SamplingParams) -> list[Request]:
    """Return requests of two tenants with every kind of adapter, with grammar and without."""
    random = np.random.default_rng(4)
    prompts = [LOOP, (3,), *(tuple(random.integers(2, 300, length).tolist()) for length in (2, 17, 40))]
    uses: list[Any] = [None, "a", "b", "late", (("a", 0.5), ("b", 0.5))]
    found = []
    for index, (prompt, use) in enumerate(zip(prompts, uses, strict=True)):
        end = A if use == "late" else ()
        found += [
            Request((*prompt, *end), replace(params, max_tokens=20 + 9 * index), adapter=use, tenant=tenant)
            for tenant in ("x", "y")
        ]
    regex = replace(params, processors=(("grammar", {"regex": "(ab|cd){4,20}"}),), ignore_eos=False)
    return [
        *found,
        Request((*LOOP, *A, *LOOP), params, adapter="late", cache_salt="s"),
        Request(LOOP, regex, tenant="x"),
    ]


def facts(completions: list[Any]) -> list[tuple[Any, ...]]:
    return [(one.text, one.token_ids, one.finish_reason, one.logprobs) for one in completions]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [512, 11])
def test_a_mixed_batch_has_the_bytes_of_an_engine_without_drafts(
    make_engine: MakeEngine, paths: dict[str, str], way: str, rows: int
) -> None:
    settings = {"adapters__paths": paths, "scheduler__max_batch_tokens": rows}
    plain, drafting = make_engine(**settings), make_engine(speculation__use="suffix", **settings)
    expected = facts(plain.generate(mix(WAYS[way])))
    drafted = 0
    for _ in range(3):  # the first answers are what later ones are drafted from
        found = drafting.generate(mix(WAYS[way]))
        assert facts(found) == expected
        drafted += sum(one.usage.accepted_tokens for one in found)
    assert drafted > 100
    assert not drafting.scheduler.running
    assert [facts(drafting.generate([one])) for one in mix(WAYS[way])] == [[one] for one in expected]


def test_preempted_requests_have_the_same_bytes(
    make_engine: MakeEngine, paths: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"adapters__paths": paths, "adapters__max_resident": 3}
    expected = facts(make_engine(**settings).generate(mix(WAYS["warm"])))
    drafting = make_engine(speculation__use="suffix", **settings)
    drafting.generate(mix(WAYS["warm"]))
    scheduler = preempting(drafting, monkeypatch)
    found = drafting.generate(mix(WAYS["warm"]))
    assert facts(found) == expected
    assert scheduler.preempted > 1 and sum(one.usage.accepted_tokens for one in found) > 30


def test_steps_that_fail_or_are_interrupted_change_nothing(make_engine: MakeEngine, paths: dict[str, str]) -> None:
    expected = facts(make_engine(adapters__paths=paths).generate(mix(GREEDY)))
    engine = make_engine(speculation__use="suffix", adapters__paths=paths)
    engine.generate(mix(GREEDY))
    inner, calls = engine.executable, iter(range(10**6))

    class Failing(Recorder):
        def run(self, batch: Any) -> Any:
            logits = inner.run(batch)
            match next(calls) % 3:
                case 1:
                    raise KernelError("step", "made to fail")
                case 2:
                    raise KeyboardInterrupt
            return logits

    Failing(engine)
    streams = [engine.submit(request) for request in mix(GREEDY)]
    failures, is_busy = 0, True
    while is_busy:
        try:
            is_busy = engine.step()
        except (KernelError, KeyboardInterrupt):
            failures += 1
    assert failures > 5
    assert facts([stream.result() for stream in streams]) == expected


def usage(engine: Engine, request: Request) -> tuple[int, int]:
    """Return how many tokens of an answer were drafted, and how many were right."""
    [found] = engine.generate([request])
    return found.usage.drafted_tokens, found.usage.accepted_tokens


def test_an_answer_that_was_given_before_takes_few_steps(make_engine: MakeEngine) -> None:
    engine = make_engine(speculation__use="suffix")
    request = Request(tuple(range(20, 60)), replace(GREEDY, temperature=1.0, max_tokens=100), tenant="x")
    first = usage(engine, request)
    recorder = Recorder(engine)
    second = usage(engine, request)
    assert first[1] < 60 and second[1] > 80 and len(recorder.rows) < 20
    assert max(recorder.rows[1:]) <= 17


OTHERS = {
    "another tenant": {"tenant": "y"},
    "no tenant": {"tenant": ""},
    "another salt": {"cache_salt": "t"},
    "another adapter": {"adapter": "twin"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_tenant_cannot_tell_by_its_drafts_what_another_was_answered(
    make_engine: MakeEngine, tmp_path: Path, other: str
) -> None:
    """The attacker asks what the victim asked, and guesses its answer; all counts are those of an idle engine."""
    path = str(tiny_adapter.write(tmp_path / "a", 0))
    twin = str(tiny_adapter.write(tmp_path / "twin", 0, strength=0.3001))
    settings = {"adapters__paths": {"a": path, "twin": twin}, "speculation__use": "suffix", "kv_cache__prefix": False}
    params = replace(GREEDY, temperature=1.0, max_tokens=80)
    asked = {"prompt": tuple(range(20, 60)), "params": params, "adapter": "a", "tenant": "x", "cache_salt": "s"}
    attacks = [Request(**{**asked, **OTHERS[other], "prompt": (*range(20, 60 - cut),)}) for cut in (0, 0, 3)]  # type: ignore[arg-type]
    idle, busy = make_engine(**settings), make_engine(**settings)
    for _ in range(3):
        busy.generate([Request(**asked)])  # type: ignore[arg-type]
    running = busy.submit(Request(**asked))  # type: ignore[arg-type]
    while not running.is_ready:
        busy.step()
    running.cancel()

    def steps(engine: Engine, request: Request) -> list[int]:
        recorder = Recorder(engine)
        engine.generate([request])
        engine.executable = recorder._inner
        return recorder.rows

    for attack in attacks:
        assert steps(busy, attack) == steps(idle, attack)
        assert usage(busy, attack) == usage(idle, attack)
    assert usage(busy, Request(**asked)) != usage(idle, Request(**asked))  # type: ignore[arg-type]


def test_the_same_contents_under_another_name_are_the_same_adapter_and_changed_contents_another(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    path = tiny_adapter.write(tmp_path / "a", 0)
    engine = make_engine(adapters__paths={"a": str(path), "copy": str(path)}, speculation__use="suffix")
    params = replace(GREEDY, temperature=1.0, max_tokens=80)
    request = Request(tuple(range(20, 60)), params, adapter="a")
    usage(engine, request)
    assert usage(engine, replace(request, adapter="copy"))[1] > 60
    tiny_adapter.write(path, 7)
    engine.adapters.unload("a")
    engine.adapters.load("a", str(path))
    assert usage(engine, request)[1] < 40, "its answers are its own"


def test_an_activated_adapter_without_its_invocation_shares_with_the_base(
    make_engine: MakeEngine, paths: dict[str, str]
) -> None:
    engine = make_engine(adapters__paths=paths, speculation__use="suffix")
    request = Request(tuple(range(100, 140)), replace(GREEDY, temperature=1.0, max_tokens=80))
    usage(engine, request)
    assert usage(engine, replace(request, adapter="late"))[1] > 60
    assert usage(engine, replace(request, adapter="late", prompt=(*request.prompt, *A)))[1] < 40


def test_requests_that_end_in_any_way_leave_nothing_running(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Store] = []
    inner = Store.__init__

    def kept(self: Store, *args: int) -> None:
        inner(self, *args)
        made.append(self)

    monkeypatch.setattr(stores.Store, "__init__", kept)
    engine = make_engine(speculation__use="suffix", scheduler__max_running=2)
    [store] = made
    streams = [engine.submit(Request(LOOP, GREEDY, tenant=str(number))) for number in range(6)]
    for _ in range(5):
        engine.step()
    assert len(store.tenants) == 2, "those that wait are not read"
    streams[0].cancel()
    streams[5].cancel()
    for stream in streams:
        stream.result()
    timed = engine.submit(Request(LOOP, GREEDY, tenant="late", timeout=0.0))
    assert timed.result().finish_reason == "timeout"
    assert {shelf.running for one in store._tenants.values() for shelf in one.shelves.values()} == {0}
    assert len(store.tenants) == 5 and all(store.bytes_of(name) > 0 for name in store.tenants)


def test_its_settings_bound_the_memory_and_a_request_without_room_goes_on(make_engine: MakeEngine) -> None:
    engine = make_engine(speculation__use="suffix", suffix__memory=4000, suffix__tenant_memory=2000)
    expected = make_engine().generate([Request(LOOP, GREEDY, tenant=str(number)) for number in range(4)])
    found = engine.generate([Request(LOOP, GREEDY, tenant=str(number)) for number in range(4)])
    assert facts(found) == facts(expected)


def test_speculation_is_chosen_by_name_and_most_tokens(make_engine: MakeEngine, tiny: Path) -> None:
    assert SuffixDrafter.most_tokens == 16
    with Engine(tiny, speculate="suffix:2", threads=1) as engine:
        recorder = Recorder(engine)
        engine.generate([Request(LOOP, GREEDY)] * 3)
        assert engine.config.speculation.most == 2
        assert max(recorder.rows[3:]) <= 9
