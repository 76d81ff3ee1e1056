"""What a step costs beside the model: Python, sampling, speculation, prompts that arrive meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from infeng_bench.models.adapters import peft_directory

from infeng_core import Engine, SamplingParams
from infeng_core.scheduling.drafts import Guesses

CONTEXT = 1024
WAYS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=400, ignore_eos=True),
}


@pytest.fixture(scope="module")
def engine(tinyllama: Any) -> Iterator[Engine]:
    """A random model, made on the first run and kept."""
    with Engine(tinyllama, speculate="ngram:8") as loaded:
        yield loaded


def start(engine: Engine, rows: int, params: SamplingParams, context: int) -> list[Any]:
    """Start ``rows`` requests and run their prompts."""
    random = np.random.default_rng(1)
    streams = [engine.submit(random.integers(300, 31000, context).tolist(), params) for _ in range(rows)]
    while not all(stream.is_ready for stream in streams):
        engine.step()
    for output in engine._in_flight.streams.outputs():
        output.sequence.guesses = None  # unless a benchmark wants them
    return streams


class Nothing:
    """An executable that gives the same logits at once."""

    def __init__(self, engine: Engine) -> None:
        """Stand before the engine's own."""
        vocab = engine.model.config.vocab
        self._logits = np.random.default_rng(0).standard_normal((engine.limits.max_samples, vocab)).astype(np.float32)
        self._inner = engine.executable

    def __getattr__(self, name: str) -> Any:
        """Be the executable in every other respect."""
        return getattr(self._inner, name)

    def run(self, batch: Any) -> Any:
        """Return logits."""
        return self._logits[: len(batch.sample_rows)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_a_step_without_the_model(
    benchmark: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, rows: int, way: str
) -> None:
    """Scheduling, sampling, detokenizing and events of one step."""
    monkeypatch.setattr(engine, "executable", Nothing(engine))
    streams = start(engine, rows, WAYS[way], 32)
    benchmark.pedantic(engine.step, rounds=300, warmup_rounds=20)
    for stream in streams:
        stream.cancel()


@pytest.mark.parametrize("adapters", [0, 4, 16])
def test_a_step_of_many_adapters_without_the_model(
    benchmark: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, adapters: int
) -> None:
    """16 rows of the base, or of as many adapters as there can be: what the scheduler does about them."""
    for index in range(adapters):
        engine.adapters.load(f"a{index}", peft_directory("tinyllama-1.1b", 1, "q_proj", index), pin=True)
    monkeypatch.setattr(engine, "executable", Nothing(engine))
    specs = [f"a{row % adapters}" if adapters else None for row in range(16)]
    prompts = np.random.default_rng(1).integers(300, 31000, (16, 32)).tolist()
    streams = [engine.submit(p, WAYS["greedy"], adapter=spec) for p, spec in zip(prompts, specs, strict=True)]
    while not all(stream.is_ready for stream in streams):
        engine.step()
    for output in engine._in_flight.streams.outputs():
        output.sequence.guesses = None
    benchmark.pedantic(engine.step, rounds=300, warmup_rounds=20)
    for stream in streams:
        stream.cancel()
    for index in range(adapters):
        engine.adapters.unload(f"a{index}")


class Wrong:
    """A drafter that always guesses, as many as it may, and is never right but by chance."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Learn nothing."""

    def draft(self, count: int) -> list[int]:
        """Return ``count`` guesses."""
        return [5] * count


class Always(Guesses):
    """Guesses whatever was right before."""

    def follow(self, new: Sequence[int], drafted: int) -> None:
        """Guess again."""
        self.draft = self._drafter.draft(self._most)


@pytest.mark.parametrize("guesses", [0, 1, 4, 8])
@pytest.mark.parametrize("rows", [1, 4])
def test_verifying_guesses(benchmark: Any, engine: Engine, rows: int, guesses: int) -> None:
    """A decoding step of CONTEXT positions with ``guesses`` drafted tokens for every row."""
    streams = start(engine, rows, WAYS["greedy"], CONTEXT)
    for output in engine._in_flight.streams.outputs():
        if guesses:
            output.sequence.guesses = Always(Wrong(), guesses)
    benchmark.pedantic(engine.step, rounds=30, warmup_rounds=3)
    for stream in streams:
        stream.cancel()


@pytest.mark.parametrize("arriving", [False, True], ids=["alone", "prompts"])
def test_steps_while_long_prompts_are_tokenized(benchmark: Any, engine: Engine, arriving: bool) -> None:
    """Decoding at one row while another thread submits texts of 40,000 characters and cancels them."""
    streams = start(engine, 1, WAYS["greedy"], 64)
    text = "The quick brown fox jumps over the lazy dog, and nobody minds. " * 30
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.is_set():
            engine.tokenize(text * 20)
            engine.submit(text, WAYS["greedy"]).cancel()
            time.sleep(0.002)

    thread = threading.Thread(target=submit)
    if arriving:
        thread.start()
    try:
        benchmark.pedantic(engine.step, rounds=100, warmup_rounds=3)
    finally:
        is_over.set()
        if arriving:
            thread.join()
    for stream in streams:
        stream.cancel()
