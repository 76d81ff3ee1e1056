"""An error of one request ends that request, and other requests keep their bytes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, SamplingParams
from infeng_core.backends.interface import NotFiniteError
from infeng_core.errors import InfengError, KernelError, PluginError, RequestError
from infeng_core.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, seed=4, max_tokens=20, ignore_eos=True)
PROMPTS = ["the quick brown fox", "spoilt " * 9, "lazy", "dogs"]
SPOILT = 1
NIGHTLY = pytest.mark.nightly

NEIGHBOURS = [0, 2, 3]


class Logits(Recorder):
    """Keeps the bytes of each sampled row by sequence and position, of each its last run."""

    def run(self, batch: Any) -> Any:
        """Run a step and listen."""
        logits = self._inner.run(batch)
        rows = iter(zip(batch.positions[batch.sample_rows].tolist(), logits, strict=True))
        for segment in batch.segments:
            known: dict[int, bytes] = self.at.setdefault(segment.sequence.id, {})
            for _ in range(segment.sampled):
                position, row = next(rows)
                known[position] = row.tobytes()  # the last: guesses may have been wrong
        return logits

    def __init__(self, engine: Engine) -> None:
        """Listen to ``engine``."""
        super().__init__(engine)
        self.at: dict[int, dict[int, bytes]] = {}


def bytes_of(engine: Engine, streams: list[Any]) -> list[dict[int, bytes]]:
    """Run everything and return the logits of each stream by position."""
    recorder = Logits(engine)
    while engine.step():
        pass
    engine.executable = recorder._inner
    return [recorder.at[stream._output.sequence.id] for stream in streams]


def compare(engine: Engine, spoil: Callable[[], Any], ends: str, *, error: type[InfengError] = KernelError) -> None:
    """Compare neighbours of a spoilt request with the same ones without it, then use the cache that it leaves."""
    requests = [(PROMPTS[i], params) for i, params in zip(NEIGHBOURS, (GREEDY, SAMPLED, GREEDY), strict=True)]
    alone = [bytes_of(engine, [engine.submit(*request)])[0] for request in requests]
    first = engine.submit(*requests[0])
    spoilt = spoil()
    streams = [first, *(engine.submit(*request) for request in requests[1:])]
    assert bytes_of(engine, streams) == alone
    with pytest.raises(error, match=ends):
        spoilt.result()
    assert all(len(stream.result().token_ids) == 20 for stream in streams)
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total
    assert all(info.references == info.waiting == 0 for info in engine.adapters.infos())
    for length in (1, 15, 16, 17, 40):  # in blocks that hold what the spoilt one has left
        again = [bytes_of(engine, [engine.submit([7] * length, GREEDY)])[0] for _ in range(2)]
        assert again[0] == again[1]
        assert np.isfinite(np.frombuffer(b"".join(again[0].values()), np.float32)).all()
    assert [bytes_of(engine, [engine.submit(*request)])[0] for request in requests] == alone


@pytest.mark.parametrize(
    "dtype",
    [
        *("f32", "f16", "int8", "int8i", "int4h", "int4hi"),
        *(pytest.param(x, marks=NIGHTLY) for x in ("int8h", "k8v4h", "fp8h", "int8hi", "k8v4hi")),
    ],
)
@pytest.mark.parametrize("speculate", ["none", "ngram"])
def test_an_adapter_that_overflows_ends_its_own_requests(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, speculate: str
):
    monkeypatch.setattr("infeng_core.adapters.reference.MAX_MAGNITUDE", float("inf"))  # which would refuse the weight
    adapter = tiny_adapter.write(tmp_path / "loud", 1, strength=100.0)
    engine = make_engine(
        adapters__paths={"loud": str(adapter)}, kv_cache__dtype=dtype, speculation__use=speculate,
        scheduler__max_batch_tokens=32, model__format="f32",  # whose products carry NaN on in every kernel
    )  # fmt: skip
    spoil = lambda: engine.submit(PROMPTS[SPOILT], GREEDY, adapter=(("loud", 3e38),))  # noqa: E731
    compare(engine, spoil, "request with adapter loud: its numbers went to NaN or infinity: check the adapter")


class Refusing(Recorder):
    """An executable with a kernel that returns INFENG_NOT_FINITE where a row holds token 9."""

    runs = 0

    def run(self, batch: Any) -> Any:
        """Run a step, or fail as a whole."""
        self.runs += 1
        if (batch.tokens == 9).any():
            raise NotFiniteError("step", "rmsnorm: status 5 (not_finite)", "")
        return super().run(batch)


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_with_refused_rows_runs_again_without_their_requests(make_engine: MakeEngine, count: int):
    engine = make_engine()
    refusing = Refusing(engine)
    spoilt: list[Any] = []

    def spoil() -> Any:
        spoilt.extend(engine.submit([5, 9, 6], GREEDY) for _ in range(count))
        return spoilt[0]

    compare(engine, spoil, "request: its numbers went to NaN or infinity: check the weights")
    for stream in spoilt:
        with pytest.raises(KernelError, match="request: its numbers"):
            next(stream)
    refusing.runs = 0
    with pytest.raises(KernelError, match="request: its numbers"):
        engine.generate([9], GREEDY)
    assert refusing.runs == 2


def test_parts_of_a_batch_with_adapters_are_batches(make_engine: MakeEngine, tmp_path: Path):
    paths = {name: str(tiny_adapter.write(tmp_path / name, seed)) for seed, name in enumerate("ab")}
    engine = make_engine(adapters__paths=paths, scheduler__max_batch_tokens=24)
    cases = [([5] * 30, "a"), ([9] * 3, "b"), ([6] * 4, None), ([7] * 20, "a"), ([8], "b")]
    expected = [engine.generate([ids], GREEDY, adapters=name)[0].token_ids for ids, name in cases if ids[0] != 9]
    Refusing(engine)
    streams = [engine.submit(ids, GREEDY, adapter=name) for ids, name in cases]
    with pytest.raises(KernelError, match="request with adapter b: its numbers"):
        streams[1].result()
    assert [stream.result().token_ids for stream in streams if stream is not streams[1]] == expected


def test_a_step_that_fails_though_each_row_runs_alone_is_an_error_of_the_step(make_engine: MakeEngine):
    engine = make_engine()
    expected = [completion.token_ids for completion in engine.generate(["a", "b"], GREEDY)]
    inner, failures = engine.executable, []

    class Crowded(Recorder):
        def run(self, batch: Any) -> Any:
            if len(batch.segments) == 2 and not failures:
                failures.append(1)
                raise NotFiniteError("step", "made to fail")
            return inner.run(batch)

    Crowded(engine)
    streams = [engine.submit(text, GREEDY) for text in "ab"]
    with pytest.raises(NotFiniteError, match="made to fail"):
        engine.step()
    assert [stream.result().token_ids for stream in streams] == expected


class Panic(BaseException):
    """What a library in Rust raises when it panics."""


@pytest.mark.parametrize("error", [ValueError("no"), Panic("called `Option::unwrap()` on a `None` value")])
@pytest.mark.parametrize("where", ["push", "finish"])
def test_a_detokenizer_that_fails_ends_its_own_request(make_engine: MakeEngine, error: BaseException, where: str):
    engine = make_engine()
    detokenizer = engine.tokenizer.detokenizer

    def made(prompt: Any) -> Any:
        real = detokenizer(prompt)
        if prompt[0] == 11:
            steps = iter(range(100))

            def fail(*arguments: Any) -> str:
                if where == "finish" or next(steps) == 4:
                    raise error
                return real.push(*arguments)

            return type("Broken", (), {"push": real.push, "finish": real.finish, where: staticmethod(fail)})()
        return real

    engine.tokenizer.detokenizer = made  # type: ignore[method-assign]
    why = f"PluginError: .* {where}\\(\\) raised {type(error).__name__}: "
    text = f"request: its text cannot be made \\({why}.*check the tokenizer"
    compare(engine, lambda: engine.submit([11, 5], GREEDY), text, error=RequestError)
    stream = engine.submit([11, 5], replace(GREEDY, max_tokens=50))
    engine.step()
    stream.cancel()
    if where == "finish":
        with pytest.raises(RequestError, match="its text cannot be made"):
            stream.result()
    engine.submit([11, 5], GREEDY)
    engine.close()


def test_a_drafter_that_fails_leaves_its_sequence_without_guesses(make_engine: MakeEngine):
    engine = make_engine(speculation__use="ngram")
    expected = [completion.token_ids for completion in engine.generate(PROMPTS, SAMPLED)]
    streams = [engine.submit(prompt, SAMPLED) for prompt in PROMPTS]

    class Broken:
        def extend(self, tokens: Any) -> None:
            raise ZeroDivisionError("oh")

    streams[0]._output.sequence.guesses._drafter = Broken()
    assert [stream.result().token_ids for stream in streams] == expected


def test_an_error_of_a_scheduler_in_the_middle_repeats_no_token(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
):
    engine = make_engine()
    expected = engine.generate("x", GREEDY)[0].token_ids
    commit, calls = Scheduler.commit, itertools.count()

    def failing(*arguments: Any) -> None:
        if next(calls) % 3 == 1:
            raise PluginError("scheduler fcfs", "made to fail")
        commit(*arguments)

    monkeypatch.setattr(Scheduler, "commit", failing)
    stream = engine.submit("x", GREEDY)
    while not stream.finished:
        with contextlib.suppress(PluginError):
            engine.step()
    assert stream.result().token_ids == expected


def test_a_scheduler_that_never_makes_a_batch_is_named(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    monkeypatch.setattr(engine._in_flight.scheduler, "next_batch", lambda now: None)
    for call in (engine.generate, lambda *given: list(engine.stream(*given))):
        with pytest.raises(PluginError, match="scheduler fcfs: requests wait, and it has no batch: use fcfs"):
            call("x", GREEDY)
    monkeypatch.undo()
    assert len(engine.generate("x", GREEDY)[0].token_ids) == 20


def test_a_request_that_the_scheduler_refuses_ends_alone(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    add = engine._in_flight.scheduler.add

    def choosy(sequence: Any, now: float) -> None:
        if sequence.prompt_length == 3:
            raise ZeroDivisionError("oh")
        add(sequence, now)

    monkeypatch.setattr(engine._in_flight.scheduler, "add", choosy)
    good, bad = engine.submit([5, 6], GREEDY), engine.submit([5, 6, 7], GREEDY)
    assert len(good.result().token_ids) == 20
    with pytest.raises(PluginError, match=r"scheduler fcfs: it does not take a request \(ZeroDivisionError: oh\)"):
        bad.result()
