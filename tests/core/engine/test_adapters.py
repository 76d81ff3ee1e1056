"""Requests with adapters in one engine: alone or together, while adapters come, go, change and fail."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import tiny_adapter
from adapter_parts import until
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, Request, SamplingParams
from infeng_core.errors import AdapterError, InfengError, KernelError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = "the quick brown fox"
NAMES = ("a", "b", "c", "d")


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four adapters by their names, of different ranks."""
    root = tmp_path_factory.mktemp("adapters")
    return {name: tiny_adapter.write(root / name, seed, rank=2 + 3 * seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def engine(make_engine: MakeEngine, adapters: dict[str, Path]) -> Engine:
    """An engine that knows the four and has room for two."""
    made = make_engine(adapters__max_resident=2)
    for name, path in adapters.items():
        made.adapters.load(name, path)
    return made


def tokens(engine: Engine, adapter: Any = None, prompt: str = PROMPT, params: SamplingParams = GREEDY) -> Any:
    return engine.generate(prompt, params, adapters=adapter)[0].token_ids


def state(engine: Engine, name: str) -> str:
    return next(info.state for info in engine.adapters.infos() if info.name == name)


@pytest.mark.slow
def test_each_adapter_changes_the_answer_and_the_base_stays_the_same(engine: Engine, make_engine: MakeEngine):
    found = [tokens(engine, name) for name in (None, *NAMES)]
    assert len(set(found)) == 5
    assert tokens(make_engine(adapters__max_resident=0)) == found[0]
    assert [info.loads for info in engine.adapters.infos()] == [1, 1, 1, 1]
    assert sorted(engine.adapters[name].state for name in NAMES) == ["registered"] * 2 + ["resident"] * 2


def test_a_mixed_batch_equals_each_request_alone_byte_for_byte(make_engine: MakeEngine, adapters: dict[str, Path]):
    engine = make_engine(adapters__paths={name: str(path) for name, path in adapters.items()})
    specs = [None, "a", "b", "a", (("a", 0.5), ("c", 1.5)), "d", None, "a"]
    prompts = [PROMPT[i:] + " jumps" * i for i in range(len(specs))]
    recorder = Recorder(engine)
    mixed = engine.generate(prompts, GREEDY, adapters=specs)
    together = dict(recorder.logits)
    assert max(recorder.rows) > len(specs)
    recorder.logits.clear()
    for index, (prompt, spec) in enumerate(zip(prompts, specs, strict=True)):
        assert engine.generate(prompt, GREEDY, adapters=spec)[0].token_ids == mixed[index].token_ids
    assert [rows for _, rows in sorted(recorder.logits.items())] == [rows for _, rows in sorted(together.items())]


def test_sequences_of_the_same_adapters_have_neighbouring_rows(make_engine: MakeEngine, adapters: dict[str, Path]):
    engine = make_engine(adapters__paths={name: str(path) for name, path in adapters.items()})
    for name in "ab":
        engine.adapters.pin(name)
    ranges: list[list[tuple[int, int, float]]] = []
    run = engine.executable.run

    def listening(batch: Any) -> Any:
        ranges.append([(rows.row_begin, rows.row_end, rows.weight) for rows in batch.adapters])
        return run(batch)

    engine.executable.run = listening  # type: ignore[method-assign]
    both = (("a", 1.0), ("b", 0.5))
    engine.generate(["x"] * 7, GREEDY, adapters=["a", None, "b", "a", both, "b", both])
    # a a | base | b b | a+b a+b: one row each while decoding
    assert ranges[-1] == [(0, 2, 1.0), (3, 5, 1.0), (5, 7, 1.0), (5, 7, 0.5)]
    assert [(end - begin) % 2 for begin, end, _ in ranges[0]] == [0, 0, 0, 0], "prompts too"


@pytest.mark.slow
@pytest.mark.parametrize("format", ["f32", "bf16", "int8"])
def test_speculation_changes_nothing_with_adapters(make_engine: MakeEngine, adapters: dict[str, Path], format: str):
    plain = make_engine(adapters__dtype=format)
    fast = make_engine(adapters__dtype=format, speculation__use="ngram")
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=24, ignore_eos=True)
    found = []
    for engine in (plain, fast):
        for name, path in adapters.items():
            engine.adapters.load(name, path)
        prompts = ["1 2 3 1 2 3 1 2 3", "x y x y x y", "a b a b a b"]
        answers = engine.generate(prompts, params, adapters=["a", None, (("b", 1.0), ("c", 0.3))])
        found.append([answer.token_ids for answer in answers])
    assert found[0] == found[1]


def test_requests_take_one_adapter_each_or_one_for_all(engine: Engine):
    alone = [tokens(engine, name) for name in (None, "a", "b")]
    per_prompt = engine.generate([PROMPT] * 3, GREEDY, adapters=[None, "a", "b"])
    assert [answer.token_ids for answer in per_prompt] == alone
    for_all = engine.generate([PROMPT] * 2, GREEDY, adapters="b")
    assert [answer.token_ids for answer in for_all] == [alone[2]] * 2
    request = Request(PROMPT, GREEDY, adapter="a")
    assert engine.generate([request], adapters="b")[0].token_ids == alone[1], "a request keeps its own"
    assert engine.submit(PROMPT, GREEDY, adapter="b").result().token_ids == alone[2]
    streamed = list(engine.stream([PROMPT], GREEDY, adapters="a"))
    assert streamed[-1].completion is not None
    assert streamed[-1].completion.token_ids == alone[1]
    assert tokens(engine, (("a", 1.0),)) == alone[1]
    assert tokens(engine, (("a", 0.0),)) == alone[0]
    both = tokens(engine, (("a", 1.0), ("b", 1.0)))
    assert both not in alone
    assert engine.generate([PROMPT] * 2, GREEDY, adapters=(("a", 1.0), ("b", 1.0)))[1].token_ids == both


@pytest.mark.parametrize(
    ("adapters_", "text"),
    [
        ("nobody", "adapter 'nobody': no adapter of that name is loaded: known here: a, b, c, d"),
        (["a"], "adapters: 1 for 2 prompts"),
        ("", "is no adapter"),
        ([("a", 1.0), ("a", 2.0)], "named twice"),
        ([("a", float("nan"))], "weight of adapter a"),
        ([["a", "b"], None], "'a' is not a name and its weight"),
        ([7, None], "7 is no adapter"),
        ((("a", 1.0), ("b", 1.0), ("c", 1.0)), r"3 adapters: adapters\.max_resident is 2"),
    ],
)
def test_an_impossible_adapter_is_refused_before_anything_runs(engine: Engine, adapters_: Any, text: str):
    with pytest.raises(RequestError, match=text):
        engine.generate([PROMPT] * 2, GREEDY, adapters=adapters_)
    assert not engine.step()


def test_names_of_the_base_are_not_for_adapters(engine: Engine, tiny: Path, adapters: dict[str, Path]):
    for name in ("base", tiny.name):
        with pytest.raises(AdapterError, match="it means the base model"):
            engine.adapters.load(name, adapters["a"])


# ---------------------------------------------------------------------------------------------------------- loading ---


class Gate:
    """Holds an engine's reading of adapters until it is opened."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.read: list[str] = []
        inner = engine._registry._loading._read

        def read(source: str, *, scale: float) -> Any:
            self.read.append(Path(source).name)
            assert self.open.wait(20)
            return inner(source, scale=scale)

        monkeypatch.setattr(engine._registry._loading, "_read", read)


def test_the_batch_runs_on_while_an_adapter_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    expected = tokens(engine, "a")
    gate = Gate(engine, monkeypatch)
    running = engine.submit(PROMPT, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
    waiting = engine.submit(PROMPT, GREEDY, adapter="c")
    for _ in range(10):
        assert engine.step()
    until(lambda: bool(gate.read))
    assert len([event for event in running.pending() if event.token_ids]) == 10
    assert (gate.read, waiting.pending(), state(engine, "c")) == (["c"], [], "loading")
    later = engine.submit(PROMPT, GREEDY, adapter="a")  # it is in memory, so it passes
    assert later.result().token_ids == expected
    gate.open.set()
    assert waiting.result().finish_reason == "length"
    running.cancel()


@pytest.mark.slow
def test_a_load_that_hangs_blocks_no_other_request_and_ends_with_an_error(
    make_engine: MakeEngine, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine(adapters__max_resident=2, adapters__load_timeout=1)
    for name, path in adapters.items():
        engine.adapters.load(name, path)
    expected = tokens(engine), tokens(engine, "a")
    gate = Gate(engine, monkeypatch)
    waiting = [engine.submit(PROMPT, GREEDY, adapter="c") for _ in range(70)]
    for _ in range(70):  # more than may overtake a request that waits for room, and than are looked at
        assert (tokens(engine), tokens(engine, "a")) == expected
    for stream in waiting:
        with pytest.raises(AdapterError, match=r"adapter c: it was not read within 1 s: .*adapters\.load_timeout"):
            stream.result()
    gate.open.set()
    assert tokens(engine, "c")
    assert (tokens(engine), tokens(engine, "a")) == expected


def test_a_step_with_nothing_else_to_do_waits_for_the_adapter(engine: Engine):
    stream = engine.submit(PROMPT, GREEDY, adapter="a")
    assert engine.step()
    assert (state(engine, "a"), stream.pending()) == ("resident", [])
    assert engine.step()
    assert len(stream.pending()) == 1


def test_a_step_waiting_for_an_adapter_serves_requests_that_arrive(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(engine, monkeypatch)
    waiting = engine.submit(PROMPT, GREEDY, adapter="a")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(waiting.result()))
    thread.start()
    until(lambda: gate.read == ["a"])
    assert engine.submit(PROMPT, GREEDY).result().finish_reason == "length"
    cancelled = engine.submit(PROMPT, GREEDY, adapter="b")
    cancelled.cancel()
    assert cancelled.result().finish_reason == "cancelled"
    waiting.cancel()
    thread.join(10)
    assert results[0].finish_reason == "cancelled"
    gate.open.set()


def test_a_step_that_waits_can_be_interrupted(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(engine, monkeypatch)
    waiting = engine.submit(PROMPT, GREEDY, adapter="a")
    threading.Timer(0.05, engine.interrupt).start()
    with pytest.raises(KernelError, match="interrupted while it waited for an adapter"):
        waiting.result()
    gate.open.set()
    assert waiting.result().finish_reason == "length"


def test_closing_ends_requests_whose_adapters_are_being_read(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    gate = Gate(engine, monkeypatch)
    running, waiting = engine.submit(PROMPT, GREEDY), engine.submit(PROMPT, GREEDY, adapter="a")
    engine.step()
    engine.close()
    gate.open.set()
    assert [stream.result().finish_reason for stream in (running, waiting)] == ["cancelled"] * 2
    until(lambda: not any(thread.name == "infeng-adapters" for thread in threading.enumerate()))


def test_a_broken_adapter_fails_its_own_requests_and_the_batch_goes_on(
    engine: Engine, tmp_path: Path, adapters: dict[str, Path]
):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in adapters["a"].iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    engine.adapters.load("broken", broken)
    good, bad, base = (engine.submit(PROMPT, GREEDY, adapter=name) for name in ("a", "broken", None))
    with pytest.raises(AdapterError, match=r"adapter_model\.safetensors"):
        bad.result()
    assert good.result().token_ids == tokens(engine, "a")
    assert base.result().token_ids == tokens(engine)
    info = next(info for info in engine.adapters.infos() if info.name == "broken")
    assert (info.state, info.loads, info.waiting) == ("registered", 0, 0)
    assert "adapter_model.safetensors" in (info.error or "")
    with pytest.raises(AdapterError):
        engine.adapters.pin("broken")
    with pytest.raises(AdapterError):
        engine.adapters.load("other", broken, pin=True)
    assert "other" not in [info.name for info in engine.adapters.infos()]


def test_a_repaired_adapter_works(engine: Engine, tmp_path: Path, adapters: dict[str, Path]):
    tiny_adapter.write(tmp_path, 0, shape=tiny_adapter.Shape(hidden=32))
    engine.adapters.load("mine", tmp_path)
    with pytest.raises(AdapterError):
        tokens(engine, "mine")
    tiny_adapter.write(tmp_path, 0, rank=2)
    assert tokens(engine, "mine") == tokens(engine, "a")


# ------------------------------------------------------------------------------------------------- coming and going ---


def test_a_reload_during_a_request_affects_only_later_requests(engine: Engine, tmp_path: Path):
    tiny_adapter.write(tmp_path, 10)
    engine.adapters.load("mine", tmp_path)
    before = tokens(engine, "mine")
    running = engine.submit(PROMPT, GREEDY, adapter="mine")
    engine.step()
    engine.step()
    tiny_adapter.write(tmp_path, 11)
    engine.adapters.reload("mine")
    after = tokens(engine, "mine")
    assert running.result().token_ids == before != after
    tiny_adapter.write(tmp_path, 11, shape=tiny_adapter.Shape(hidden=32))
    with pytest.raises(AdapterError):
        engine.adapters.reload("mine")
    assert tokens(engine, "mine") == after, "what could not be reloaded stays as it was"


def test_adapters_are_looked_up_and_counted_by_name(engine: Engine, adapters: dict[str, Path]):
    assert list(engine.adapters) == list(NAMES)
    assert len(engine.adapters) == len(NAMES)
    assert "a" in engine.adapters and "z" not in engine.adapters
    tokens(engine, "b")
    assert engine.adapters["b"] == engine.adapters.infos()[1]
    assert (engine.adapters["b"].state, engine.adapters["a"].state) == ("resident", "registered")
    for name in engine.adapters:
        engine.adapters.unload(name)
    assert not engine.adapters
    with pytest.raises(AdapterError, match=r"there is none of that name: load it with engine\.adapters\.load"):
        engine.adapters["a"]


def test_unloading_in_use_lets_requests_finish_and_refuses_new_ones(engine: Engine):
    expected = tokens(engine, "a")
    running = engine.submit(PROMPT, GREEDY, adapter="a")
    engine.step()
    waiting = engine.submit(PROMPT, GREEDY, adapter="a")
    engine.adapters.unload("a")
    with pytest.raises(RequestError, match="no adapter of that name"):
        engine.submit(PROMPT, GREEDY, adapter="a")
    assert running.result().token_ids == waiting.result().token_ids == expected
    with pytest.raises(AdapterError, match="there is none of that name"):
        engine.adapters.unload("a")


def test_twice_as_many_adapters_as_fit_are_served_in_turn(engine: Engine):
    expected = {name: tokens(engine, name) for name in NAMES}
    names = [NAMES[i % 4] for i in range(24)]
    answers = engine.generate([PROMPT] * 24, GREEDY, adapters=names)
    assert [answer.token_ids for answer in answers] == [expected[name] for name in names]
    assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())


def test_warm_adapters_are_in_memory_from_the_start_and_stay(make_engine: MakeEngine, adapters: dict[str, Path]):
    paths = {name: str(path) for name, path in adapters.items()}
    engine = make_engine(adapters__paths=paths, adapters__warm=["b"], adapters__max_resident=2)
    for name in ("a", "c", "d"):
        tokens(engine, name)
    assert [info.pinned for info in engine.adapters.infos()] == [False, True, False, False]
    assert (state(engine, "b"), state(engine, "a")) == ("resident", "registered")
    with pytest.raises(AdapterError, match="there is none of that name: did you mean `a`"):
        make_engine(adapters__paths=paths, adapters__warm=["aa"])


def test_two_engines_have_separate_adapters(make_engine: MakeEngine, adapters: dict[str, Path]):
    one, two = make_engine(), make_engine()
    one.adapters.load("x", adapters["a"])
    two.adapters.load("x", adapters["b"])
    assert tokens(one, "x") != tokens(two, "x")
    one.close()
    two.adapters.load("y", adapters["a"])
    assert tokens(two, "y") != tokens(two, "x")


def test_adapters_can_be_passed_to_the_engines_constructor(tiny: Path, adapters: dict[str, Path]):
    with Engine(tiny, adapters={"a": adapters["a"]}, threads=1) as engine:
        assert [info.name for info in engine.adapters.infos()] == ["a"]
    with pytest.raises(AdapterError, match="is not there"):
        Engine(tiny, adapters={"a": "no/such/place/here"}, threads=1)


def test_threads_load_unload_and_generate_at_once(engine: Engine, adapters: dict[str, Path]):
    expected = {name: tokens(engine, name) for name in (None, *NAMES)}
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for i in range(12):
                name = choose.choice([None, *NAMES])
                assert tokens(engine, name) == expected[name]
                own, source = f"own-{seed}-{i}", choose.choice(NAMES)
                engine.adapters.load(own, adapters[source])
                stream = engine.submit(PROMPT, GREEDY, adapter=own)
                engine.adapters.unload(own)
                if choose.random() < 0.3:
                    stream.cancel()
                else:
                    assert stream.result().token_ids == expected[source]
                if choose.random() < 0.3:
                    engine.adapters.reload(choose.choice(NAMES))
        except (InfengError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert [info.name for info in engine.adapters.infos()] == list(NAMES)
    while engine.step():
        pass
    assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())
