"""Sampling through the engine: parameters reach the right rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_parts import MakeEngine

from infeng_core import Request, SamplingParams

BASE = SamplingParams(temperature=1.0, seed=5, max_tokens=16, ignore_eos=True)
GREEDY = replace(BASE, temperature=0.0)


@pytest.mark.parametrize(
    "narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999999}, {"temperature": 1e-4}], ids=lambda v: next(iter(v))
)
def test_a_filter_that_leaves_one_token_is_greedy(make_engine: MakeEngine, narrow: dict[str, float]):
    engine = make_engine()
    greedy, sampled, narrowed = engine.generate(
        [Request("fox", GREEDY), Request("fox", BASE), Request("fox", replace(BASE, **narrow))]
    )
    assert narrowed.token_ids == greedy.token_ids
    assert sampled.token_ids != greedy.token_ids


def test_each_row_of_a_changing_batch_keeps_its_own_parameters(make_engine: MakeEngine):
    engine = make_engine()
    requests = [
        Request("a", replace(GREEDY, max_tokens=3)),
        Request("b", replace(BASE, max_tokens=9, seed=1)),
        Request("c", replace(BASE, max_tokens=6, seed=2, top_k=3)),
        Request("d", replace(GREEDY, max_tokens=12)),
    ]
    alone = [engine.generate([request])[0].token_ids for request in requests]
    assert [completion.token_ids for completion in engine.generate(requests)] == alone
    assert [completion.token_ids for completion in engine.generate(requests[::-1])] == alone[::-1]
