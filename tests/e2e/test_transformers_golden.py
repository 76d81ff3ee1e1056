"""Whole engines, in f32, against what transformers computed: logits at every threshold and 64 greedy tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens import oracle
from goldens.shapes import GREEDY_STEPS, Case

from infeng_core import SamplingParams

implementation = pytest.mark.parametrize("implementation", harness.IMPLEMENTATIONS)
GREEDY = SamplingParams(temperature=0, max_tokens=GREEDY_STEPS, ignore_eos=True)


@implementation
def test_logits_and_greedy_tokens_equal_transformers(implementation: str, case: Case, reduced: dict[str, Path]) -> None:
    if reason := harness.missing(implementation):
        pytest.skip(reason)
    golden = oracle.golden(case)
    with harness.engine(reduced[case.name], harness.F32, harness.IMPLEMENTATIONS[implementation]) as engine:
        bound = engine.executable.bound()
        assert harness.libraries(bound, ("linear", "attention", "rmsnorm")) == {implementation}
        logits = harness.logits(engine, golden["prompt"], golden["positions"], chunks=3)
        [completion] = engine.generate([golden["prompt"].tolist()], GREEDY)
    assert logits.std() >= 1
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=oracle.TOLERANCE)
    assert list(completion.token_ids) == golden["greedy"].tolist()
