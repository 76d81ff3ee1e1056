"""What a format costs in quality: perplexity of trained models on texts that they have not seen."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import infeng_demo
import numpy as np
import pytest
from e2e import harness

from infeng_core import Engine

TEXTS = (Path(__file__).parent / "heldout.txt").read_text().split("\n---\n")
STORIES = TEXTS[:3]  # what stories260K was trained for

# Perplexity in binary64, computed by the NumPy model straight from the checkpoints.
DEMO_F32, STORIES_F32 = 42.272, 4.0660

# Perplexity over that of the unquantized model, at most; with the int8 cache as well as without it. The smaller the
# model, the more 4 bits cost: rows of stories260K are one group of 64.
BOUNDS = {"f32": 1.005, "bf16": 1.005, "int8-row": 1.01, "int4-g64": 1.10, "int4-g32": 1.08}
BOUNDS |= {"int4-p32": 1.07, "int5-p32": 1.03, "int6-p32": 1.015, "int8-g32": 1.01}
STORIES_BOUNDS = BOUNDS | {"int4-g64": 1.14, "int4-g32": 1.10, "int4-p32": 1.10}


def perplexity(engine: Engine, texts: Sequence[str]) -> float:
    """Return exp of the mean negative log-probability of every token after the first."""
    total, count = 0.0, 0
    for text in texts:
        ids = np.array(engine.tokenize(text)[: engine.limits.context], np.int32)
        logits = harness.logits(engine, ids[:-1], range(len(ids) - 1)).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))  # (tokens, vocab)
        total -= log_p[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
    return float(np.exp(total / count))


def measure(directory: Path, texts: Sequence[str], format: str, cache: str, **more: object) -> float:
    settings: Mapping[str, object] = {"model.format": format, "kv_cache.dtype": cache, **more}
    with harness.engine(directory, settings, rows=1024, threads=2) as engine:
        return perplexity(engine, texts)


def check(
    directory: Path, texts: Sequence[str], exact: float, format: str, cache: str, bounds: Mapping[str, float]
) -> None:
    ratio = measure(directory, texts, format, cache) / exact
    assert 0.98 < ratio < bounds[format], f"{format} with a {cache} cache: {ratio:.4f} of {exact}"


def slow(*formats: str) -> Iterator[Any]:
    yield from (pytest.param(format, marks=pytest.mark.slow) for format in formats)


@pytest.mark.slow
def test_the_demo_model_in_f32_has_the_perplexity_of_its_checkpoint() -> None:
    assert measure(infeng_demo.model_dir(), TEXTS, "f32", "f32") == pytest.approx(DEMO_F32, rel=1e-4)


@pytest.mark.slow
def test_an_f16_cache_keeps_the_perplexity_of_the_demo_model() -> None:
    assert measure(infeng_demo.model_dir(), TEXTS, "f32", "f16") == pytest.approx(DEMO_F32, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4-g64", *slow("int8-row", "int4-p32", "bf16", "int4-g32")])
def test_a_format_costs_the_demo_model_little(format: str) -> None:
    check(infeng_demo.model_dir(), TEXTS, DEMO_F32, format, "int8", BOUNDS)


@pytest.mark.slow
def test_stories260k_in_f32_has_the_perplexity_of_its_checkpoint(stories: Path) -> None:
    assert measure(stories, STORIES, "f32", "f32") == pytest.approx(STORIES_F32, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["int4-p32", *slow("int4-g64", "int8-row", "int4-g32")])
def test_a_format_costs_stories260k_little(format: str, stories: Path) -> None:
    check(stories, STORIES, STORIES_F32, format, "int8", STORIES_BOUNDS)


@functools.cache
def exactly(directory: Path, texts: tuple[str, ...]) -> float:
    return measure(directory, texts, "f32", "f32")


USUAL = {("demo", "int4-g64", "int8"), ("demo", "int8-row", "f16"), ("stories", "int4-g32", "int8")}


@pytest.mark.parametrize(
    ("name", "format", "cache"),
    [
        pytest.param(*each, marks=pytest.mark.slow if each in USUAL else pytest.mark.nightly)
        for each in itertools.product(["demo", "stories"], BOUNDS, ["f32", "f16", "int8"])
    ],
)
def test_every_format_and_cache_on_long_texts(name: str, format: str, cache: str, stories: Path) -> None:
    """The tail of a sample of TinyStories, against the same model in f32."""
    directory = infeng_demo.model_dir() if name == "demo" else stories
    tail = (Path(os.environ["INFENG_TEST_DATA"]) / "text" / "tinystories.txt").read_text()[-24_000:]
    texts = tuple(tail[begin : begin + 1200] for begin in range(0, len(tail), 1200))
    check(directory, texts, exactly(directory, texts), format, cache, BOUNDS if name == "demo" else STORIES_BOUNDS)
