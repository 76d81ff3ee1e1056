"""Embeddings: the final hidden states of a prompt's tokens, independent of chunks and batches."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_adapter
from engine_parts import MakeEngine, preempting

from infeng_core import Engine, Request, SamplingParams
from infeng_core.errors import EndedError, InfengError, RequestError, UsageError
from infeng_core.requests.stream import Stream

LONG = [5 + i % 40 for i in range(100)]
PROMPTS: list[Any] = [LONG, "the quick brown fox", [7], LONG[:33], LONG[:64]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
FLOAT = {"model__format": "f32", "model__formats": {}, "kv_cache__dtype": "f32"}


def hidden(engine: Engine, ids: list[int], adapter: str | None = None) -> np.ndarray:
    """What the head must have read of each token: the logits are head @ hidden, and the head has full rank.

    Solved for in double from the logits of every prefix, so that nothing of the way that is tested is used.
    """
    one = SamplingParams(temperature=0.0, max_tokens=1, logits=True)
    logits = [
        engine.generate([ids[: end + 1]], one, adapters=adapter)[0].logits[0].astype(np.float64)  # type: ignore[index]
        for end in range(len(ids))
    ]
    head = engine.model.matrix("model.embed_tokens.weight").astype(np.float64)  # tied
    return np.linalg.lstsq(head, np.array(logits).T, rcond=None)[0].T


@pytest.mark.parametrize("backend", ["native", "numpy"])
def test_vectors_are_means_of_the_final_hidden_states(make_engine: MakeEngine, backend: str):
    engine = make_engine(backend__use=backend, **FLOAT)
    for prompt in ([7], LONG[:9]):
        states = hidden(engine, prompt)
        [mean], [last] = (engine.embed([prompt], pooling=kind, normalize=False) for kind in ("mean", "last"))
        assert mean.dtype == np.float32 and mean.shape == (engine.model.config.hidden,)
        np.testing.assert_allclose(mean, states.mean(axis=0), atol=2e-4)
        np.testing.assert_allclose(last, states[-1], atol=2e-4)
        [unit] = engine.embed([prompt])
        assert np.linalg.norm(unit) == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(unit, mean / np.linalg.norm(mean), atol=1e-6)


def test_backends_agree(make_engine: MakeEngine):
    native, numpy = make_engine(**FLOAT), make_engine(backend__use="numpy", **FLOAT)
    for kind in ("mean", "last"):
        for one, other in zip(native.embed(PROMPTS, pooling=kind), numpy.embed(PROMPTS, pooling=kind), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scheduler__max_batch_tokens": 7},
        {"scheduler__max_running": 1, "kv_cache__prefix": False},
        {"speculation__use": "ngram", "scheduler__max_batch_tokens": 40},
    ],
)
@pytest.mark.parametrize("kind", ["mean", "last"])
def test_a_vector_depends_on_neither_neighbours_nor_chunks(
    make_engine: MakeEngine, settings: dict[str, Any], kind: Any, tmp_path: Path
):
    paths = {"x": str(tiny_adapter.write(tmp_path / "x", 3))}
    plain, engine = make_engine(adapters__paths=paths), make_engine(adapters__paths=paths, **settings)
    names = ["x", None, None, "x", None]
    alone = [plain.embed([p], pooling=kind, adapters=[name])[0] for p, name in zip(PROMPTS, names, strict=True)]
    streams = [engine.submit(prompt, GREEDY, adapter=name) for prompt, name in zip(PROMPTS, names, strict=True)]
    engine.step()
    found = engine.embed(PROMPTS, pooling=kind, adapters=names)
    again = engine.embed(PROMPTS, pooling=kind, adapters=names)  # whose beginnings may be in the cache
    for vectors in (found, again):
        assert [one.tobytes() for one in vectors] == [one.tobytes() for one in alone]
    expected = plain.generate(PROMPTS, GREEDY, adapters=names)
    assert [stream.result().token_ids for stream in streams] == [one.token_ids for one in expected]
    with_adapter, without = (plain.embed([LONG], pooling=kind, adapters=name)[0] for name in ("x", None))
    assert with_adapter.tobytes() != without.tobytes()


def test_an_adapters_own_norm_changes_the_vector(make_engine: MakeEngine, tmp_path: Path):
    directory = tiny_adapter.write(tmp_path / "x", 3, norm=True)
    engine = make_engine(adapters__paths={"x": str(directory)}, adapters__dtype="f32", **FLOAT)
    states = hidden(engine, LONG[:5], "x")
    [mixed, plain] = engine.embed([LONG[:5]] * 2, adapters=["x", None], normalize=False)
    np.testing.assert_allclose(mixed, states.mean(axis=0), atol=2e-4)
    assert np.abs(mixed - plain).max() > 1e-3


def test_means_are_computed_and_last_rows_come_from_the_cache(make_engine: MakeEngine):
    engine = make_engine()
    engine.generate([LONG], GREEDY)
    rows: list[int] = []
    real = engine.executable.run
    engine.executable.run = lambda batch: rows.append(len(batch.tokens)) or real(batch)  # type: ignore[method-assign]
    engine.embed([LONG], pooling="last")
    assert sum(rows) < 16 + 1
    rows.clear()
    engine.embed([LONG])
    assert rows == [len(LONG)], "one step, for no logits are wanted but those of the last row"


def test_steps_without_embeddings_compute_none(make_engine: MakeEngine):
    engine = make_engine()
    real, wanted = engine.executable.run, []
    engine.executable.run = lambda batch: wanted.append(batch.hidden) or real(batch)  # type: ignore[method-assign]
    engine.generate([LONG], GREEDY)
    assert not any(wanted)
    engine.embed([LONG])
    engine.generate([LONG], GREEDY)
    assert sum(wanted) == 1
    states = engine.executable.hidden_states()  # type: ignore[attr-defined]
    before = states.copy()
    engine.generate([LONG[::-1]], replace(GREEDY, max_tokens=1))
    assert np.array_equal(engine.executable.hidden_states()[: len(before)], before)  # type: ignore[attr-defined]


def test_preemption_and_interrupts_change_no_vector(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine(scheduler__max_batch_tokens=24)
    expected = engine.embed(PROMPTS)
    scheduler = preempting(engine, monkeypatch)
    beside = [engine.submit(text, replace(GREEDY, max_tokens=60)) for text in ("a", "b")]  # else one runs at a time
    assert [one.tobytes() for one in engine.embed(PROMPTS)] == [one.tobytes() for one in expected]
    assert scheduler.preempted >= 2 and len(beside) == 2


def test_one_thread_may_embed_while_others_generate(make_engine: MakeEngine):
    engine = make_engine(scheduler__max_batch_tokens=24)
    expected = [one.tobytes() for one in engine.embed(PROMPTS)]
    found: list[bool] = []

    def embed() -> None:
        found.append([one.tobytes() for one in engine.embed(PROMPTS)] == expected)

    threads = [threading.Thread(target=embed) for _ in range(3)]
    for thread in threads:
        thread.start()
    engine.generate(PROMPTS, GREEDY)
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    assert not engine._embeddings.calls


def test_an_invalid_prompt_for_embedding_is_refused_before_anything_runs(make_engine: MakeEngine):
    engine = make_engine()
    with pytest.raises(RequestError, match="prompt: it is empty"):
        engine.embed([[]])
    with pytest.raises(RequestError, match="prompt of 256 tokens: the context is 256 tokens"):
        engine.embed(["x", [5] * 256])
    with pytest.raises(RequestError, match="token 999 is not in the vocabulary"):
        engine.embed([[999]])
    with pytest.raises(RequestError, match="pooling: 'max' is none: known here: last, mean"):
        engine.embed("x", pooling="max")  # type: ignore[arg-type]
    with pytest.raises(InfengError, match="adapter"):
        engine.embed("x", adapters="nobody")
    assert engine.embed([]) == []
    assert not engine._embeddings.calls


def test_a_prompt_that_times_out_has_no_vector(make_engine: MakeEngine):
    engine = make_engine()
    with pytest.raises(RequestError, match="prompt: it ended before all of it was computed: give it more time"):
        engine.embed([Request(tuple(LONG), timeout=0.0)])
    assert engine.embed([Request(tuple(LONG), timeout=60.0)])[0].shape == (64,)


def test_a_prompt_cancelled_at_its_start_has_no_vector(make_engine: MakeEngine):
    engine = make_engine()
    streams: list[Stream] = []

    def started(stream: Stream) -> None:
        streams.append(stream)
        if len(streams) == 2:
            stream.cancel()

    with pytest.raises(EndedError, match="prompt: it ended before all of it was computed"):
        engine.embed(["x", tuple(LONG), "y"], started=started)
    assert len(streams) == 3
    assert engine.scheduler.free_blocks == engine.scheduler.pool.total


def test_a_backend_without_hidden_states_says_so(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    monkeypatch.setattr(type(engine.executable), "has_hidden_states", False)
    with pytest.raises(UsageError, match="backend native: it has no hidden states of this model"):
        engine.embed("x")
