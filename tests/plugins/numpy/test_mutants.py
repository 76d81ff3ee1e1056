"""Every term of the model counts: with any one of them missing or wrong, the comparison with transformers fails.

A mutant is killed when its logits are off by more than MARGIN times the tolerance on one of the golden cases.
"""

from __future__ import annotations

import numpy as np
import pytest
from goldens import oracle
from goldens.mutants import OPS, SHORT, WHOLE, Mutant, tensor_mutants
from goldens.shapes import BIASED, CASES, Case
from infeng_numpy.llama import Llama

MARGIN = 10


def error(case: Case, llama: Llama, rows: int = SHORT) -> float:
    golden = oracle.golden(case)
    sampled = golden["positions"][golden["positions"] < rows]
    logits = oracle.prefill(llama, golden["prompt"][:rows], sampled)
    return float(np.abs(logits - golden["logits"][: len(sampled)]).max())


@pytest.mark.parametrize("mutant", OPS, ids=lambda mutant: mutant.name)
def test_a_changed_term_changes_the_logits(mutant: Mutant) -> None:
    wrong = oracle.model(mutant.case, mutant.model)
    assert error(mutant.case, wrong, mutant.rows) > MARGIN * oracle.TOLERANCE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_changed_tensor_changes_the_logits(case: Case) -> None:
    tensors = dict(case.tensors())
    survivors = []
    for name, changed in tensor_mutants(tensors):
        if error(case, oracle.model(case, tensors=tensors | {name: changed})) <= MARGIN * oracle.TOLERANCE:
            survivors.append(name)
    assert survivors == []


def test_the_unchanged_model_gives_the_golden_logits() -> None:
    assert error(BIASED, oracle.model(BIASED), WHOLE) <= oracle.TOLERANCE
