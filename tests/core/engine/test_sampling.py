"""Sampling through the engine: parameters reach the right rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_parts import MakeEngine
from sampling_parts import Definition

from infeng_core import Request, SamplingParams, _native
from infeng_core.errors import ManifestError, RequestError

BASE = SamplingParams(temperature=1.0, seed=5, max_tokens=16, ignore_eos=True)
GREEDY = replace(BASE, temperature=0.0)


@pytest.mark.parametrize(
    "narrow",
    [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.999999}, {"temperature": 1e-4}, {"top_n_sigma": 1e-6}],
    ids=lambda v: next(iter(v)),
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


FILTERED: list[dict[str, Any]] = [
    {"typical_p": 0.6},
    {"top_n_sigma": 1.2},
    {"xtc_probability": 0.8, "xtc_threshold": 0.01},
    {"dry_multiplier": 1.5, "dry_allowed_length": 1, "dry_sequence_breakers": ("e",)},
    {"typical_p": 0.9, "top_k": 60, "xtc_probability": 1.0, "xtc_threshold": 0.02, "dry_multiplier": 0.8},
]


def loops(params: SamplingParams) -> list[Request]:
    return [Request("the fox the fox the fox the", replace(params, max_tokens=30, **more)) for more in FILTERED]


def test_filters_depend_on_no_neighbour_and_no_guess(make_engine: MakeEngine):
    plain, guessing = make_engine(), make_engine(speculation__use="ngram")
    cold = replace(BASE, temperature=0.4)
    mixed = [*loops(BASE), Request("b", BASE), Request("c", GREEDY), *loops(cold)]
    alone = [plain.generate([request])[0] for request in mixed]
    tokens = [completion.token_ids for completion in alone]
    assert [completion.token_ids for completion in plain.generate(mixed)] == tokens
    guessed = guessing.generate(mixed[::-1])[::-1]
    assert [completion.token_ids for completion in guessed] == tokens
    assert sum(completion.usage.accepted_tokens for completion in guessed) > 10
    unfiltered = plain.generate(Request(mixed[0].prompt, replace(BASE, max_tokens=30)))[0].token_ids
    assert [one == unfiltered for one in tokens[: len(FILTERED)]] == [False] * len(FILTERED)


@pytest.mark.parametrize("order", [(), ("xtc", "min_p")])
def test_tokens_follow_the_definition_in_the_manifests_order(make_engine: MakeEngine, order: tuple[str, ...]):
    engine = make_engine(sampling__order=order)
    settings: dict[str, Any] = {"min_p": 0.2, "xtc_probability": 0.7, "xtc_threshold": 0.1, "typical_p": 0.9}
    [found] = engine.generate("fox", replace(BASE, **settings, logits=True))
    assert found.logits is not None
    begin = len(engine.tokenize("fox"))
    whole = (*order, *(name for name in _native.FILTERS if name not in order))
    for index, row in enumerate(found.logits):
        drawn = Definition(row, **settings, seed=5, position=begin + index, order=whole).draw()
        assert drawn == found.token_ids[index]


def test_an_unknown_filter_in_the_order_gets_a_suggestion(make_engine: MakeEngine):
    with pytest.raises(ManifestError, match=r"'topk' is not one of .* \(did you mean `top_k`\?\)"):
        make_engine(sampling__order=("min_p", "topk"))
    with pytest.raises(ManifestError, match="the same item is listed twice"):
        make_engine(sampling__order=("min_p", "min_p"))


def test_greedy_decoding_ignores_filters_but_not_dry(make_engine: MakeEngine):
    engine = make_engine()
    plain = engine.generate("fox", replace(GREEDY, max_tokens=60))[0].token_ids
    for more in FILTERED[:3]:
        assert engine.generate("fox", replace(GREEDY, max_tokens=60, **more))[0].token_ids == plain
    dry = engine.generate("fox", replace(GREEDY, max_tokens=60, dry_multiplier=5.0, dry_sequence_breakers=()))
    assert triples(dry[0].token_ids) > triples(plain), "it repeats itself less"


def triples(tokens: Sequence[int]) -> int:
    return len(set(zip(tokens, tokens[1:], tokens[2:], strict=False)))


def test_breakers_that_the_tokenizer_cannot_encode_are_the_requests_error(make_engine: MakeEngine):
    engine = make_engine(tokenizer__use="ids")
    with pytest.raises(RequestError, match="dry_sequence_breakers: they cannot be encoded"):
        engine.generate([[5, 6]], replace(GREEDY, dry_multiplier=1.0))
    assert engine.generate([[5, 6]], replace(GREEDY, dry_multiplier=1.0, dry_sequence_breakers=()))


def test_rows_without_filters_pass_none_to_the_sampler(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch):
    engine, native, calls = make_engine(), _native.sample, []

    def sample(*args: Any, **kwargs: Any) -> None:
        calls.append(kwargs)
        native(*args, **kwargs)

    monkeypatch.setattr(_native, "sample", sample)
    engine.generate(["a", "b"], BASE)
    assert calls and not any(calls)
    engine.generate([Request("a", BASE), Request("b", replace(BASE, typical_p=0.5))])
    expected = np.array([[1, 0.5], [0, 0], [0, 0], [0.1, 0.1]], np.float32)
    assert np.array_equal(calls[-1]["filters"], expected)
