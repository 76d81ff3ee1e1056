"""Failures between tenants that others have published, as cases: what is known of each, and that it does not happen.

docs/isolation.md lists them with their sources.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_adapter
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, Request, SamplingParams

PROMPT = [5 + i % 40 for i in range(64)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logits=True)


def facts(one: Any) -> tuple[object, ...]:
    """Return tokens and the bytes of all logits."""
    return one.token_ids, [row.tobytes() for row in one.logits]


def fresh(make_engine: MakeEngine, path: Path | str | None, prompt: list[int] = PROMPT) -> tuple[object, ...]:
    """Return what an engine that has served nobody answers with one adapter."""
    paths = {} if path is None else {"only": str(path)}
    engine = make_engine(adapters__paths=paths, kv_cache__prefix=False)
    [one] = engine.generate([prompt], GREEDY, adapters=None if path is None else "only")
    engine.close()
    return facts(one)


def test_a_prompt_that_one_adapter_has_computed_is_not_found_by_another(make_engine: MakeEngine, tmp_path: Path):
    """llama.cpp#26207: keys and values of one request's adapter were reused for a request with another."""
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    engine = make_engine(adapters__paths=paths)
    uses: list[Any] = ["a", "b", None, (("a", 0.5),), (("a", 1.0), ("b", 1.0))]
    for use in uses:
        [found] = engine.generate([PROMPT], GREEDY, adapters=[use])
        assert found.usage.cached_tokens == 0
        alone = make_engine(adapters__paths=paths, kv_cache__prefix=False)
        assert facts(found) == facts(alone.generate([PROMPT], GREEDY, adapters=[use])[0])
        alone.close()
    assert engine.generate([PROMPT], GREEDY, adapters="b")[0].usage.cached_tokens == 48, "its own it finds"


def test_adapters_that_are_loaded_meanwhile_do_not_take_the_place_of_running_ones(
    make_engine: MakeEngine, tmp_path: Path
):
    """vllm#47724: after an adapter had been added, a request in flight went on with another user's adapter."""
    paths = {f"a{k}": tiny_adapter.write(tmp_path / f"a{k}", k) for k in range(6)}
    expected = {name: fresh(make_engine, path) for name, path in paths.items()}
    engine = make_engine(adapters__max_resident=2, kv_cache__prefix=False)
    for name in ("a0", "a1"):
        engine.adapters.load(name, str(paths[name]))
    running = [engine.submit(PROMPT, GREEDY, adapter=name) for name in ("a0", "a1")]
    waiting = []
    for step in range(200):
        if not engine.step():
            break
        if step in (2, 4, 6, 8):  # while they decode: places in memory are wanted, names come and go
            name = f"a{2 + step // 2 - 1}"
            engine.adapters.load(name, str(paths[name]))
            waiting.append((name, engine.submit(PROMPT, GREEDY, adapter=name)))
            engine.adapters.unload("a0") if step == 4 else engine.adapters.load(f"other{step}", str(paths["a5"]))
    assert len(waiting) == 4
    for name, stream in [*zip(("a0", "a1"), running, strict=True), *waiting]:
        assert facts(stream.result()) == expected[name]


def test_a_name_that_is_loaded_again_finds_nothing_of_its_former_contents(make_engine: MakeEngine, tmp_path: Path):
    """vllm#42125: after a reload under the same name, blocks of the old weights were found."""
    path, other = (tiny_adapter.write(tmp_path / name, seed) for seed, name in enumerate("ab"))
    expected = [fresh(make_engine, path), fresh(make_engine, other)]
    engine = make_engine(adapters__paths={"mine": str(path)})
    assert facts(engine.generate([PROMPT], GREEDY, adapters="mine")[0]) == expected[0]
    engine.adapters.unload("mine")
    engine.adapters.load("mine", str(other))
    [found] = engine.generate([PROMPT], GREEDY, adapters="mine")
    assert (found.usage.cached_tokens, facts(found)) == (0, expected[1])
    tiny_adapter.write(other, 0)  # in place, with the first one's weights
    engine.adapters.reload("mine")
    [again] = engine.generate([PROMPT], GREEDY, adapters="mine")
    assert facts(again) == expected[0]
    assert again.usage.cached_tokens == 48, "equal contents are the same adapter, whatever its name or time"


def test_two_adapters_that_have_one_name_at_the_same_time_share_nothing(make_engine: MakeEngine, tmp_path: Path):
    """vllm#30931: adapters with one name and other ids shared blocks, which were found by the name."""
    first, second = (tiny_adapter.write(tmp_path / name, seed) for seed, name in enumerate("ab"))
    expected = [fresh(make_engine, first), fresh(make_engine, second)]
    engine = make_engine(adapters__paths={"mine": str(first)})
    old = engine.submit(PROMPT, GREEDY, adapter="mine")
    for _ in range(3):
        engine.step()
    engine.adapters.unload("mine")
    engine.adapters.load("mine", str(second))
    new = engine.submit(PROMPT, GREEDY, adapter="mine")
    results = [old.result(), new.result()]
    assert [facts(one) for one in results] == expected
    assert [one.usage.cached_tokens for one in results] == [0, 0]


def rows(engine: Engine, prompt: list[int], salt: str) -> list[int]:
    """Return the rows of each step that a request with a salt takes: what its time to the first token depends on."""
    inner, recorder = engine.executable, Recorder(engine)
    try:
        engine.submit(Request(tuple(prompt), replace(GREEDY, max_tokens=2), cache_salt=salt)).result()
    finally:
        engine.executable = inner
    return recorder.rows


def test_under_another_salt_a_guessed_prompt_takes_the_work_of_a_new_one(make_engine: MakeEngine):
    """CVE-2025-46570: the time to the first token told whether somebody else had sent the same prompt."""
    engine = make_engine()
    secret, other = PROMPT, [*PROMPT[:-1], 3]
    of_a_new_one = rows(engine, [50, *PROMPT[1:]], "spy")
    of_the_owner = rows(engine, secret, "owner")
    assert of_the_owner == of_a_new_one
    for guess in (secret, other, secret[:33]):
        spy = f"spy {len(guess)} {guess[-1]}"  # what it has asked itself it does find
        assert rows(engine, guess, spy) == rows(make_engine(), guess, spy), "nothing that the owner has computed"
    assert sum(rows(engine, secret, "owner")) < sum(of_the_owner), "who has sent it finds it"


def test_drafts_come_from_the_requests_own_tokens(make_engine: MakeEngine):
    """Else the number of right guesses would tell what others have asked."""
    said = [7, 9, 11, 13, 15, 17, 19, 21] * 6
    guess = [60, 7, 9, 11]

    def drafted(engine: Engine) -> tuple[int, int]:
        one = Request(tuple(guess), replace(GREEDY, max_tokens=16), tenant="spy", cache_salt="spy")
        usage = engine.submit(one).result().usage
        return usage.drafted_tokens, usage.accepted_tokens

    alone = drafted(make_engine(speculation__use="ngram"))
    engine = make_engine(speculation__use="ngram")
    engine.submit(Request(tuple(said), GREEDY, tenant="owner", cache_salt="owner")).result()
    running = engine.submit(Request(tuple(said), replace(GREEDY, max_tokens=60), tenant="owner", cache_salt="owner"))
    for _ in range(4):
        engine.step()
    assert drafted(engine) == alone
    running.cancel()
