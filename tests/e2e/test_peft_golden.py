"""Whole engines, in f32, against what transformers and PEFT computed: all adapters of a base in one batch with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from e2e import harness
from goldens import oracle
from goldens.adapted import ADAPTED, STEPS, Adapted
from goldens.shapes import CASES, Case

from infeng_core import Engine, SamplingParams
from infeng_core.requests.request import Request

GREEDY = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)


def sampled(prompt: list[int]) -> list[int]:
    """Return the positions whose logits are stored."""
    return [len(prompt) // 2, len(prompt) - 2, len(prompt) - 1]


def request(case: Adapted, prompt: list[int]) -> Request:
    return Request(tuple(prompt), GREEDY, adapter=case.combines or case.name)


@pytest.mark.parametrize("base", CASES, ids=lambda base: base.name)
@pytest.mark.parametrize("implementation", harness.IMPLEMENTATIONS)
def test_every_kind_of_adapter_equals_peft(implementation: str, base: Case, reduced: dict[str, Path]) -> None:
    if reason := harness.missing(implementation):
        pytest.skip(reason)
    cases = [case for case in ADAPTED if case.base is base]
    assert len(cases) >= 3
    names = {case.name: case.directory for case in cases if not case.combines}
    settings = harness.IMPLEMENTATIONS[implementation]
    with harness.engine(reduced[base.name], harness.F32, settings, rows=128, adapters=names) as engine:
        bound = engine.executable.bound()
        assert harness.libraries(bound, ("linear", "shrink", "rmsnorm")) == {implementation}
        check_logits(engine, cases)
        check_tokens(engine, cases, base)


def check_logits(engine: Engine, cases: list[Adapted]) -> None:
    for case in cases:
        adapters = harness.applied(engine, case.adapters)
        for prompt, expected in zip(case.prompts, case.expected()["logits"], strict=True):
            logits = harness.logits(engine, prompt, sampled(prompt), chunks=2, adapters=adapters)
            atol = oracle.TOLERANCE / 2 if case.holds else oracle.TOLERANCE  # 1e-4 for trained tokens
            np.testing.assert_allclose(logits, expected, rtol=0, atol=atol, err_msg=case.name)


def check_tokens(engine: Engine, cases: list[Adapted], base: Case) -> None:
    """Everything at once, in chunks, with a request of the base in between."""
    golden = oracle.golden(base)
    requests = [request(case, prompt) for case in cases for prompt in case.prompts]
    plain = Request(tuple(golden["prompt"].tolist()), GREEDY)
    middle = len(requests) // 2
    done = engine.generate([*requests[:middle], plain, *requests[middle:]])
    tokens = [list(completion.token_ids) for completion in done]
    assert tokens.pop(middle) == golden["greedy"][:STEPS].tolist()
    expected = [greedy for case in cases for greedy in case.expected()["greedy"].tolist()]
    assert tokens == expected
