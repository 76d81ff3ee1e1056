"""Vectors with adapters of every kind, in f32, against the hidden states that PEFT and transformers computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens.adapted import EMBEDDED, VECTORS
from goldens.shapes import CASES, Case

from infeng_core.requests.request import Request

BASES = [base for base in CASES if any(case.base is base for case in EMBEDDED)]
TOLERANCE = 1e-4  # hidden states have a standard deviation of about 1


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
@pytest.mark.parametrize("implementation", [harness.VECTOR, "reference"])
def test_vectors_of_a_mixed_batch_equal_pefts_and_those_of_each_alone(
    implementation: str, base: Case, reduced: dict[str, Path]
) -> None:
    cases = [case for case in EMBEDDED if case.base is base]
    with np.load(VECTORS) as file:
        expected = [each for case in cases for each in file[case.name]]
    names = {name.name: name for case in cases for name, _ in case.adapters}
    requests = [Request(tuple(prompt), adapter=case.combines or case.name) for case in cases for prompt in case.prompts]
    settings = harness.IMPLEMENTATIONS[implementation]
    plain = [replace(request, adapter=None) for request in requests]
    with harness.engine(reduced[base.name], harness.F32, settings, rows=19, adapters=names) as engine:
        for place, pooling in enumerate(("mean", "last")):
            both = [*requests, *plain]
            found = engine.embed(both, pooling=pooling, normalize=False)
            for vector, wanted, without in zip(found, expected, found[len(requests) :], strict=False):
                np.testing.assert_allclose(vector, wanted[place], rtol=0, atol=TOLERANCE)
                assert vector.shape == without.shape
            alone = [engine.embed([request], pooling=pooling, normalize=False)[0] for request in both]
            assert [one.tobytes() for one in found] == [one.tobytes() for one in alone]
    changed = [not np.array_equal(a, b) for a, b in zip(found, found[len(requests) :], strict=False)]
    inactive = sum(not places for case in cases if case.invoked for places in case.invoked)
    assert changed.count(False) == inactive, "only an activated adapter that is not invoked leaves the base's vector"
