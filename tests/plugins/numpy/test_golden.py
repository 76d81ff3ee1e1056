"""The NumPy model gives what transformers gives, on its own, without the engine."""

from __future__ import annotations

import numpy as np
import pytest
from goldens import oracle
from goldens.shapes import BIASED, CASES, Case

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
def test_logits_at_every_threshold_equal_those_of_transformers(case: Case) -> None:
    golden = oracle.golden(case)
    assert golden["logits"].std() >= 1
    np.testing.assert_array_equal(golden["prompt"], case.prompt)
    logits = oracle.prefill(oracle.model(case), golden["prompt"], golden["positions"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE)


@by_name
def test_64_greedy_tokens_equal_those_of_transformers(case: Case) -> None:
    golden, llama = oracle.golden(case), oracle.model(case)
    logits = oracle.prefill(llama, golden["prompt"], golden["positions"])[-1]
    tokens: list[int] = []
    for position in range(len(golden["prompt"]), len(golden["prompt"]) + 64):
        tokens.append(int(logits.argmax()))
        logits = oracle.decode(llama, tokens[-1], position)
    assert tokens == golden["greedy"].tolist()


def test_goldens_do_not_depend_on_rounding() -> None:
    for case in CASES:
        assert oracle.golden(case)["lead"].min() > 20 * oracle.TOLERANCE


def test_two_sequences_of_a_batch_are_independent() -> None:
    llama, prompt = oracle.model(BIASED), BIASED.prompt[:40]
    first, second = prompt[:23], prompt[23:]
    alone = [oracle.prefill(oracle.model(BIASED), part, np.array([len(part) - 1])) for part in (first, second)]
    positions = np.concatenate([np.arange(23), np.arange(17)]).astype(np.int32)
    segments = np.array([[0, 23, 0, 0], [23, 40, 0, 2]], np.int32)
    together = llama.forward(prompt, positions, segments, np.array([4, 1, 3, 0], np.int32), np.array([22, 39]))
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=1e-9)
