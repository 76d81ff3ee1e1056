"""Steps of the whole engine: one token for each of N requests, and a prompt, on TinyLlama-1.1B's shapes at int4-g64."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infeng_core import Engine, SamplingParams

CONTEXT = 256


@pytest.fixture(scope="module")
def engine(tinyllama: Any) -> Iterator[Engine]:
    """A random model, made on the first run and kept."""
    with Engine(tinyllama) as loaded:
        yield loaded


def prompt(seed: int) -> list[int]:
    """Return CONTEXT random ids."""
    return np.random.default_rng(seed).integers(300, 31000, CONTEXT).tolist()


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_decode(benchmark: Any, engine: Engine, rows: int) -> None:
    """One step for ``rows`` requests of about CONTEXT positions."""
    params = SamplingParams(temperature=0.0, max_tokens=1024, ignore_eos=True)
    streams = [engine.submit(prompt(i), params) for i in range(rows)]
    while not all(stream.pending() for stream in streams):
        engine.step()
    benchmark.pedantic(engine.step, rounds=30, warmup_rounds=3)
    benchmark.extra_info["tokens_per_s"] = rows / benchmark.stats["median"]
    for stream in streams:
        stream.cancel()


def test_prefill(benchmark: Any, engine: Engine) -> None:
    """A prompt of CONTEXT tokens to its first new token."""
    params = SamplingParams(temperature=0.0, max_tokens=1)
    benchmark.pedantic(engine.generate, args=([prompt(0)], params), rounds=5, warmup_rounds=1)
    benchmark.extra_info["tokens_per_s"] = CONTEXT / benchmark.stats["median"]
