"""Every family gives the same logits on a GPU as on a processor, experts, windows, sinks and adapters included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens.families import FAMILY_CASES, FamilyCase

QUICK = ("gpt-oss", "starcoder2")
"""Families that have between them every op; the others run every night."""


CASES = [pytest.param(one, marks=() if one.name in QUICK else pytest.mark.nightly, id=one.name) for one in FAMILY_CASES]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_a_processor(case: FamilyCase, device: str, tmp_path: Path) -> None:
    prompt, found = np.asarray(case.prompt[:40], np.int32), []
    directory = case.write(tmp_path / "model")
    usual = {"kv_cache.memory": "4MB", **({"model.context": case.context} if case.context else {})}
    for backend in ({"backend.use": "native"}, {"backend.use": "cuda", "cuda.device": device}):
        with harness.engine(directory, usual, backend) as engine:
            found.append(harness.logits(engine, prompt, range(0, len(prompt), 7), chunks=3))
    assert found[0].tobytes() == found[1].tobytes()
