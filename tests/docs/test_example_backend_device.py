"""The example of a backend with a device of its own: each optional interface, and the tokens of the native backend."""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import caches
import numpy as np
import pytest
import tiny_adapter
import tiny_model
from convert_parts import load
from engine_parts import preempting
from infeng_convert.conversion import convert

from infeng_core import Engine, Request, SamplingParams
from infeng_core.backends.interface import NotFiniteError
from infeng_core.errors import KernelError, ModelError, PluginError, ResourceError
from infeng_core.formats.format_choice import FormatChoice
from infeng_core.plug.assembly import load_config

PLUGIN = Path(__file__).parents[2] / "docs" / "examples" / "backend_device" / "infeng_aside" / "plugin.yaml"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=0.9, seed=7)
ON_HOST = {"processors": (("grammar", {"regex": "[a-z ]{40}"}),), "max_tokens": 12}

MIXED = [
    Request([5, 6, 7] * 6, GREEDY),
    Request([5] * 20, DRAWN, adapter="a"),
    Request([6, 7, 6, 7, 6], replace(DRAWN, top_p=0.9, top_k=30), adapter="b"),
    Request([9] * 30, replace(DRAWN, seed=2**64 - 1, temperature=2.5), adapter="a"),
    Request([8, 9], replace(DRAWN, logprobs=3)),
    Request([8, 9], replace(DRAWN, repetition_penalty=1.3, logit_bias={5: 2.0}), adapter="b"),
    Request([3, 4], replace(DRAWN, typical_p=0.8, top_n_sigma=2.0, xtc_probability=0.5, xtc_threshold=0.1)),
    Request([11, 12], replace(DRAWN, **ON_HOST)),
    Request([5] * 3, replace(DRAWN, seed=11, max_tokens=40, stop=("zzz",)), adapter="b"),
]
"""Rows that the device draws and rows that the host draws: filters, reports, penalties, a grammar; with adapters."""


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("INFENG_") and name != "INFENG_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INFENG_CACHE", str(caches.shared(tmp_path_factory)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("infeng_aside", "infeng_aside.sampling"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {name: tiny_adapter.write(place / name, seed) for seed, name in enumerate("ab")}


def made(model: Path, backend: str = "aside", **settings: Any) -> Engine:
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    overrides = {"plugins.paths": [str(PLUGIN)], "backend.use": backend, "scheduler.max_batch_tokens": 64, **overrides}
    return Engine(model, threads=1, overrides=overrides)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that gets, for each step of the device, its sampled rows and those that it draws from."""
    import infeng_aside

    steps: list[tuple[int, int]] = []
    compute = infeng_aside.Device._compute

    def counted(self: Any, batch: Any) -> Any:
        steps.append((len(batch.sample_rows), 0 if batch.draws is None else len(batch.draws.samples)))
        return compute(self, batch)

    monkeypatch.setattr(infeng_aside.Device, "_compute", counted)
    return steps


def tokens(answers: Any) -> list[tuple[int, ...]]:
    return [one.token_ids for one in answers]


# ----------------------------------------------------------------------------------------------------- equal tokens ---


@pytest.mark.parametrize("speculate", ["none", "ngram"])
@pytest.mark.parametrize("is_started", [False, True])
def test_mixed_batches_give_the_tokens_and_reports_of_the_native_backend(
    tiny: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch, speculate: str, is_started: bool
) -> None:
    pytest.importorskip("infeng_grammar")
    settings = {"adapters__paths": {name: str(path) for name, path in adapters.items()}, "speculation__use": speculate}
    with made(tiny, "native", **settings) as engine:
        expected = engine.generate(MIXED)
    with made(tiny, **settings) as engine:
        steps = spied(monkeypatch)
        if is_started:
            engine.start()
        found = engine.generate(MIXED)
        with monkeypatch.context() as patched:
            scheduler = preempting(engine, patched)
            again = engine.generate(MIXED)
        assert scheduler.preempted >= 2
        assert not engine._execution.is_late
        assert scheduler.free_blocks == scheduler.pool.total
        assert all(info.references == 0 for info in engine.adapters.infos())
    assert tokens(found) == tokens(again) == tokens(expected)
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert [one.text for one in found] == [one.text for one in expected]
    assert any(0 < drawn < rows for rows, drawn in steps)  # a divided batch
    assert any(0 < drawn == rows for rows, drawn in steps)  # a batch of the device alone


def test_the_device_draws_what_the_host_draws_for_random_logits(tiny: Path) -> None:
    from infeng_core import _native

    with made(tiny):
        from infeng_aside.sampling import draw
    random = np.random.default_rng(3)
    rows = (random.standard_normal((400, 333)) * random.uniform(0.1, 20, (400, 1))).astype(np.float32)
    rows[7, 3], rows[9, 4], rows[11, :] = np.nan, np.inf, 1.0
    seeds = random.integers(0, 2**64, 400, np.uint64, endpoint=False)
    places = random.integers(1, 2**40, 400, np.int64)
    heat = random.choice(np.array([0.0, 0.01, 0.7, 1.0, 3.0], np.float32), 400)
    zeros, ones, out = np.zeros(400, np.float32), np.ones(400, np.float32), np.empty(400, np.int32)
    _native.sample(rows, heat, np.zeros(400, np.int32), ones, zeros, seeds, places, out)
    drawn = [draw(*given) for given in zip(rows, heat.tolist(), seeds.tolist(), places.tolist(), strict=True)]
    assert drawn == out.tolist()
    assert drawn[7] == drawn[9] == -1


def test_hidden_states_and_scores_come_from_asynchronous_steps_too(tiny: Path) -> None:
    with made(tiny, "native") as engine:
        vectors, scores = engine.embed([[5, 6, 7], [8] * 90]), engine.score([5, 6], [7, 8, 9])
    with made(tiny) as engine:
        found = engine.embed([[5, 6, 7], [8] * 90])
        assert engine.score([5, 6], [7, 8, 9]) == scores
    assert [one.tobytes() for one in found] == [one.tobytes() for one in vectors]


# --------------------------------------------------------------------------------------------------------- weights ---


def test_the_host_holds_the_weight_at_hand_and_the_one_before(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny):
        pass  # the module is imported, the conversion cached
    from infeng_core.formats.artifacts import reader

    taken: list[int] = []
    alive: list[int] = []
    memories: list[weakref.ref[Any]] = []
    make = reader.aligned_bytes

    def counted(count: int) -> Any:
        alive.append(sum(one() is not None for one in memories))
        taken.append(count)
        memory = make(count)
        memories.append(weakref.ref(memory.base))
        return memory

    monkeypatch.setattr(reader, "aligned_bytes", counted)
    monkeypatch.setattr(reader, "_arena", lambda *_: pytest.fail("the model was copied to host memory"))
    with made(tiny) as engine:
        assert sum(taken) == engine.model.nbytes
        assert len(taken) == len(engine.model.tensors) + len(engine.model.vectors)
        assert all(isinstance(one.buffer, mmap.mmap) for one in engine.model.tensors.values())
        assert engine.generate([[5, 6]], GREEDY)
    assert max(alive) == 1  # the one before, which the loop of the backend still names


@pytest.mark.parametrize("kind", ["codes", "vector", "short"])
def test_a_damaged_weight_is_found_while_it_is_streamed(tiny: Path, tmp_path: Path, kind: str) -> None:
    convert(tiny, tmp_path / "native", FormatChoice("int4-g64"))
    model = load(tmp_path / "native", load_config())
    [file] = (tmp_path / "native").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    if kind == "short":
        file.write_bytes(data[: len(data) // 2])
    else:
        one = next(iter(model.tensors)) if kind == "codes" else next(iter(model.vectors))
        at = data.index(f'"{one}"'.encode())
        begin = int(data[at:].split(b'"data_offsets":[')[1].split(b",")[0]) + 8 + int.from_bytes(data[:8], "little")
        data[begin] ^= 1
        file.write_bytes(data)
    with pytest.raises(ModelError, match=r"lies beyond the end of the file|tensor .* does not match its checksum"):
        made(tmp_path / "native")


def test_a_backend_after_one_without_room_gets_the_model_in_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny, "native") as engine:
        expected = tokens(engine.generate([[5, 6]], GREEDY))
    with made(tiny):
        import infeng_aside

    def full(model: Any) -> Any:
        next(model.weights())
        raise ResourceError("device", "it is full", "use a smaller model")

    monkeypatch.setattr(infeng_aside, "uploaded", full)
    with pytest.raises(ResourceError, match="it is full"):
        made(tiny)
    with made(tiny, backend__order=["aside", "native"]) as engine:
        assert engine.config.backend.use == "native" and engine.model.stream is None
        assert not any(isinstance(one.buffer, mmap.mmap) for one in engine.model.tensors.values())
        assert tokens(engine.generate([[5, 6]], GREEDY)) == expected


def test_a_model_in_memory_yields_its_weights_too(tiny: Path) -> None:
    model = load(tiny, load_config())
    assert dict(model.weights()) == {**model.tensors, **model.vectors}


# ---------------------------------------------------------------------------------------------- asynchronous steps ---


def test_a_step_computes_while_its_caller_does_other_work(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny) as engine:
        import infeng_aside

        gate, began = threading.Event(), threading.Event()
        compute = infeng_aside.Device._compute

        def gated(self: Any, batch: Any) -> Any:
            began.set()
            assert gate.wait(60)
            return compute(self, batch)

        monkeypatch.setattr(infeng_aside.Device, "_compute", gated)
        stream = engine.submit([5, 6], GREEDY)
        assert engine.step() and began.wait(60) and engine._execution.is_late  # returns with the step under way
        later = engine.submit([7, 8], GREEDY)  # a request is accepted meanwhile
        gate.set()
        assert tokens([stream.result(), later.result()]) == tokens(engine.generate([[5, 6], [7, 8]], GREEDY))


def test_a_request_that_is_cancelled_during_a_step_ends_and_its_neighbour_stays(tiny: Path) -> None:
    with made(tiny) as engine:
        expected = tokens(engine.generate([[7, 8]], GREEDY))
        gone, stays = engine.submit([5, 6], GREEDY), engine.submit([7, 8], GREEDY)
        for _ in range(4):
            engine.step()
        gone.cancel()
        assert engine._execution.is_late and not gone.finished
        engine.step()
        assert gone.finished and gone.result().finish_reason == "cancelled"
        assert tokens([stays.result()]) == expected
        alone = engine.submit([5, 6], GREEDY)
        engine.step()
        alone.cancel()  # nobody wants the step: it ends at once
        assert alone.finished and not engine._execution.is_late
        assert engine.scheduler.free_blocks == engine.scheduler.pool.total


@pytest.mark.parametrize("is_started", [False, True])
def test_an_error_of_a_late_step_comes_from_the_next_and_the_requests_stay(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    with made(tiny) as engine:
        import infeng_aside

        expected = tokens(engine.generate([[5, 6], [7, 8]], DRAWN))
        compute, count = infeng_aside.Device._compute, itertools.count(1)

        def failing(self: Any, batch: Any) -> Any:
            if next(count) == 5:
                raise KernelError("device", "it is lost", "reset it")
            return compute(self, batch)

        with monkeypatch.context() as patched:
            patched.setattr(infeng_aside.Device, "_compute", failing)
            if is_started:
                engine.start()
            streams = [engine.submit(prompt, DRAWN) for prompt in ([5, 6], [7, 8])]
            if is_started:  # the engine's thread ends the requests in flight with the error
                for stream in streams:
                    with pytest.raises(KernelError, match="it is lost"):
                        stream.result()
            else:
                with pytest.raises(KernelError, match="it is lost"):
                    streams[0].result()
                assert tokens(stream.result() for stream in streams) == expected
        assert tokens(engine.generate([[5, 6], [7, 8]], DRAWN)) == expected
        assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_rows_that_are_not_finite_end_their_own_request(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny) as engine:
        import infeng_aside

        expected = tokens(engine.generate([[7, 8]], GREEDY))
        compute = infeng_aside.Device._compute

        def spoilt(self: Any, batch: Any) -> Any:
            if any(segment.sequence.prompt_length == 5 and segment.pos0 > 7 for segment in batch.segments):
                raise NotFiniteError("step", "a row is NaN", "")
            return compute(self, batch)

        monkeypatch.setattr(infeng_aside.Device, "_compute", spoilt)
        streams = [engine.submit([5] * 5, GREEDY), engine.submit([7, 8], GREEDY)]
        assert tokens([streams[1].result()]) == expected
        with pytest.raises(KernelError):
            streams[0].result()


def test_ctrl_c_during_a_late_step_loses_no_token(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny) as engine:
        import infeng_aside

        expected = tokens(engine.generate([[5, 6], [7] * 20], DRAWN))
        for method in ("start", "finish"):
            inner, count = getattr(infeng_aside.Device, method), itertools.count(1)

            def interrupted(self: Any, given: Any, inner: Any = inner, count: Any = count) -> Any:
                result = inner(self, given)
                if next(count) % 3 == 0:
                    raise KeyboardInterrupt
                return result

            with monkeypatch.context() as patched:
                patched.setattr(infeng_aside.Device, method, interrupted)
                streams = [engine.submit(prompt, DRAWN) for prompt in ([5, 6], [7] * 20)]
                vars(engine._runs).pop(method, None)  # the checked method that was looked up before
                interrupts = 0
                while not all(stream.finished for stream in streams):
                    try:
                        engine.step()
                    except KeyboardInterrupt:
                        interrupts += 1
                assert interrupts >= 5
                assert tokens(stream.result() for stream in streams) == expected
            vars(engine._runs).pop(method, None)
        assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_an_engine_closes_with_a_step_under_way(tiny: Path) -> None:
    engine = made(tiny)
    stream = engine.submit([5] * 40, GREEDY)
    engine.step()
    assert engine._execution.is_late
    engine.close()
    assert stream.result().finish_reason == "cancelled"


def test_the_time_of_a_step_is_not_learned_where_the_host_came_back_late(tiny: Path) -> None:
    with made(tiny) as engine:
        learned: list[float] = []
        engine.scheduler.costs.observe = lambda shape, seconds: learned.append(seconds)  # type: ignore[method-assign]
        stream = engine.submit([5, 6], GREEDY)
        engine.step()
        assert engine._execution._late is not None
        batch, handle, _ = engine._execution._late
        handle.result()
        engine._execution._late = batch, handle, -1e9  # started long ago, and over since then
        engine.step()
        assert stream.is_ready and not learned


# ------------------------------------------------------------------------------------------------ what is missing ---


@pytest.mark.parametrize(("method", "other"), [("start", "finish"), ("finish", "start"), ("samples", "sampled")])
def test_a_half_of_an_interface_is_an_error_that_names_the_other(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, method: str, other: str
) -> None:
    with made(tiny):
        import infeng_aside
    monkeypatch.delattr(infeng_aside.Device, method)
    with pytest.raises(PluginError, match=rf"plugin aside: backend aside: it has no {method}"):
        made(tiny)
    monkeypatch.delattr(infeng_aside.Device, other)
    monkeypatch.setattr(infeng_aside.Device, "run", lambda self, batch: self._compute(batch)[0])
    if method == "samples":
        with made(tiny) as engine:
            assert len(tokens(engine.generate([[5, 6]], DRAWN))[0]) == 24


def test_a_backend_with_neither_works_as_before(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny, "native") as engine:
        expected = tokens(engine.generate([[5, 6]], DRAWN))
    with made(tiny):
        import infeng_aside
    for method in ("start", "finish", "samples", "sampled"):
        monkeypatch.delattr(infeng_aside.Device, method)
    monkeypatch.setattr(infeng_aside.Device, "run", lambda self, batch: self._inner.run(batch))
    monkeypatch.delattr(infeng_aside.Aside, "streams_weights")
    with made(tiny) as engine:
        assert engine.model.stream is None
        assert tokens(engine.generate([[5, 6]], DRAWN)) == expected


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (lambda self: np.array([1, 2, 3], np.int32), r"it returned \(3,\) tokens for 1 rows"),
        (lambda self: np.array([10**6], np.int32), "ids outside of the vocabulary"),
        (lambda self: np.array([-2], np.int32), "ids outside of the vocabulary"),
        (lambda self: [1], r"the result of sampled\(\) is \[1\]"),
        (lambda self: np.array([1], np.int64), r"the result of sampled\(\) is of int64"),
    ],
)
def test_wrong_tokens_of_a_device_are_an_error(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, lie: Any, words: str
) -> None:
    with made(tiny):
        import infeng_aside
    monkeypatch.setattr(infeng_aside.Device, "sampled", lie)
    with made(tiny) as engine, pytest.raises(PluginError, match=words):
        engine.generate([[5, 6]], DRAWN)


def test_logits_of_a_wrong_shape_from_finish_are_an_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(tiny):
        import infeng_aside
    monkeypatch.setattr(infeng_aside.Device, "finish", lambda self, handle: handle.result()[0][:0])
    with made(tiny) as engine, pytest.raises(PluginError, match=r"finish\(\) returned \(0, \d+\) for 1 sampled rows"):
        engine.generate([[5, 6]], DRAWN)
