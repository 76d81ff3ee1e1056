"""One request gives the same logits, to the byte, in any batch and any chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_parts import MakeEngine, Recorder

from infeng_core import Engine, Request, SamplingParams

NEW = 12
FORMATS: list[Any] = [
    ("f32", "f32"),
    ("int8-row", "int8"),
    ("int4-g32", "f16"),
    ("int4-g64", "int4h"),
    ("int4-g64", "int8i"),
    ("int8-row", "int4hi"),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (("int4-g64", "int8"), ("int8-g32", "int8"), ("bf16", "f32"))
    ),
    *(pytest.param("int8-row", kv, marks=pytest.mark.nightly) for kv in ("int8h", "k8v4h", "fp8h", "int8hi", "k8v4hi")),
]


def prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of 1 to 61 tokens."""
    random = np.random.default_rng(7)
    return [tuple(random.integers(2, 300, 1 + (17 * i) % 61).tolist()) for i in range(count)]


def params(seed: int) -> SamplingParams:
    """Odd seeds sample, even ones are greedy."""
    return SamplingParams(temperature=float(seed % 2), seed=seed, max_tokens=NEW, ignore_eos=True)


def run(engine: Engine, asked: list[tuple[int, ...]], seeds: list[int]) -> list[tuple[list[bytes], tuple[int, ...]]]:
    """Return logits and tokens of each prompt, all in one batch."""
    recorder = Recorder(engine)
    requests = [Request(prompt, params(seed)) for prompt, seed in zip(asked, seeds, strict=True)]
    tokens = [completion.token_ids for completion in engine.generate(requests)]
    assert all(len(rows) == NEW for rows in recorder.logits.values())
    return [(recorder.logits[id_], t) for id_, t in zip(sorted(recorder.logits), tokens, strict=True)]


@pytest.mark.parametrize(("weights", "kv"), FORMATS)
def test_a_request_gives_the_same_bytes_alone_or_in_a_batch_of_sixteen(make_engine: MakeEngine, weights: str, kv: str):
    settings = {"model__format": weights, "kv_cache__dtype": kv}
    asked, seeds = prompts(16), list(range(16))
    together = run(make_engine(**settings), asked, seeds)
    for i in (0, 3, 8, 15):
        assert run(make_engine(**settings), [asked[i]], [seeds[i]]) == [together[i]]


@pytest.mark.parametrize(("weights", "kv"), FORMATS)
def test_a_prompt_gives_the_same_bytes_in_one_chunk_or_many(make_engine: MakeEngine, weights: str, kv: str):
    settings = {"model__format": weights, "kv_cache__dtype": kv}
    asked = [prompts(8)[7]]
    assert len(asked[0]) == 59
    whole = run(make_engine(**settings), asked, [1])
    for rows in (9, 16, 1):  # seven chunks, whole cache blocks, token by token
        assert run(make_engine(**settings, scheduler__max_batch_tokens=rows), asked, [1]) == whole


@pytest.mark.parametrize(("weights", "kv"), FORMATS)
def test_threads_and_kernel_libraries_do_not_change_the_bytes(make_engine: MakeEngine, weights: str, kv: str):
    settings = {"model__format": weights, "kv_cache__dtype": kv}
    asked, seeds = prompts(5), [1, 2, 3, 4, 5]
    reference = run(make_engine(**settings, kernels__order=["reference"]), asked, seeds)
    assert run(make_engine(**settings), asked, seeds) == reference
    assert run(make_engine(**settings, threads__count=2), asked, seeds) == reference
    assert run(make_engine(**settings, threads__count=3), asked, seeds) == reference


def test_a_request_that_arrives_late_does_not_change_the_others(make_engine: MakeEngine):
    asked, seeds = prompts(4), [11, 12, 13, 14]
    expected = run(make_engine(), asked, seeds)
    engine = make_engine()
    recorder = Recorder(engine)
    streams = []
    for prompt, seed in zip(asked, seeds, strict=True):
        streams.append(engine.submit(prompt, params(seed)))
        for _ in range(3):
            engine.step()
    tokens = [stream.result().token_ids for stream in streams]
    assert [(recorder.logits[i], t) for i, t in enumerate(tokens)] == expected
