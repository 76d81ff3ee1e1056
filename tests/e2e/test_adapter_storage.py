"""What storing adapters in few bits costs: the divergence of the demo adapters' predictions from those with bf16."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import infeng_demo
import numpy as np
import pytest
from e2e import harness
from numpy.typing import NDArray

TEXTS = (Path(__file__).parent / "heldout_adapters.txt").read_text().split("\n---\n")
VERSE, CODE = TEXTS[:2], TEXTS[2:]
ADAPTERS = Path(infeng_demo.__file__).parent / "adapters"
NAMES = ("shakespeare", "python", "shakespeare-dora")

# Mean divergence in nats per token, at most. With int8 activations any change of a bit moves some of their roundings:
# there bf16 is about as far from f32.
BOUNDS = {"f32": 4e-4, "int4-g64": 3e-3}
BOUNDS_OF_TAILS = {"shakespeare": 0.006, "python": 0.02, "shakespeare-dora": 0.008}  # of int8t4
USUAL = {("int4-g64", "shakespeare"), ("f32", "python")}


def predictions(
    format: str, dtype: str, name: str | None, texts: Sequence[str], threads: int = 2
) -> NDArray[np.float64]:
    """Return log-probabilities of every token after each token of the texts, (tokens, vocab)."""
    settings = {**(harness.F32 if format == "f32" else {"model.format": format}), "adapters.dtype": dtype}
    parts = []
    with harness.engine(infeng_demo.model_dir(), settings, threads=threads, rows=512) as engine:
        adapters = harness.applied(engine, [(ADAPTERS / name, 1.0)] if name else [])
        for text in texts:
            ids = engine.tokenize(text)[:512]
            logits = harness.logits(engine, ids, range(len(ids)), adapters=adapters).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            parts.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    return np.concatenate(parts)


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Return the mean over tokens of KL(p || q) in nats, from log-probabilities."""
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def check(format: str, name: str, texts: Sequence[str]) -> dict[str, float]:
    reference = predictions(format, "bf16", name, texts)
    plain = predictions(format, "bf16", None, texts)
    found = {
        dtype: divergence(reference, predictions(format, dtype, name, texts)) for dtype in ("int8", "int8t4", "f32")
    }
    found["base"] = divergence(reference, plain)
    assert 0 < found["int8"] < BOUNDS[format]
    assert found["int8"] < found["int8t4"] < BOUNDS_OF_TAILS[name]
    assert found["f32"] < BOUNDS[format]
    assert found["base"] > 1  # the adapter does something
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), [("f32", "shakespeare-dora"), ("int4-g64", "python")])
def test_integer_storage_predicts_the_tokens_of_bf16_storage(format: str, name: str) -> None:
    check(format, name, CODE if name == "python" else VERSE)


@pytest.mark.parametrize(
    ("format", "name"),
    [
        pytest.param(format, name, marks=pytest.mark.slow if (format, name) in USUAL else pytest.mark.nightly)
        for format in BOUNDS
        for name in NAMES
    ],
)
def test_integer_storage_costs_little_on_texts_like_the_training_data(format: str, name: str) -> None:
    """The part of each training text that was held out."""
    data = Path(os.environ["INFENG_TEST_DATA"])
    if name == "python":
        tasks = [json.loads(line) for line in (data / "eval/mbpp.jsonl").read_text().splitlines()]
        texts = [f"# {task['text']}\n{task['code']}".replace("\r", "") for task in tasks[-24:]]
    else:
        verse = (data / "text/tinyshakespeare.txt").read_text()
        verse = verse[-len(verse) // 20 :]
        texts = [verse[i : i + 1500] for i in range(0, 12 * 1500, 1500)]
    print(format, name, check(format, name, texts))
