"""DRY: penalties follow the definition for any chunks of text, at bounded cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from infeng_processors import dry
from infeng_processors.dry import LONGEST, Dry, breaker_ids

from infeng_core.errors import RequestError
from infeng_core.requests.builtin_processors import requested_processors
from infeng_core.requests.parameters import MOST_DRY_LENGTH
from infeng_core.requests.processors import Vocabulary
from infeng_core.requests.request import SamplingParams

VOCAB = 8


class Letters:
    """A tokenizer of one token for each character: the digits are their own ids."""

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        return [[int(letter) if letter.isdigit() else VOCAB - 1 for letter in text] for text in texts]


def made(prompt: Sequence[int], *argument: Any) -> Dry:
    return Dry(Vocabulary(Letters(), VOCAB, (), Path()), argument, prompt)  # type: ignore[arg-type]


def defined(
    text: list[int], multiplier: float, base: float, allowed: int, last_n: int, breakers: str
) -> dict[int, float]:
    """What is taken from each logit: the author's rule, place by place."""
    text = text[-last_n:] if last_n > 0 else text
    broken = {int(letter) for letter in breakers}
    longest: dict[int, int] = {}
    for place in range(len(text) - 1):
        length = 0
        while length < min(50, place + 1) and text[place - length] == text[-1 - length] not in broken:
            length += 1
        if length >= allowed and text[place + 1] not in broken:
            longest[text[place + 1]] = max(length, longest.get(text[place + 1], 0))
    return {token: multiplier * base ** (length - allowed) for token, length in longest.items()}


def found(processor: Dry, guesses: Sequence[int] = ()) -> dict[int, float]:
    row = processor.row(tuple(guesses))
    if row is None:
        return {}
    assert row.ids is not None and row.biases is not None and row.penalties is None and row.allowed is None
    assert (row.ids.dtype, row.biases.dtype) == (np.int32, np.float32)
    return dict(zip(row.ids.tolist(), (-row.biases).tolist(), strict=True))


letters = st.lists(st.integers(0, 3), min_size=1, max_size=90)
looping = st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=7), st.integers(1, 30)).map(lambda t: t[0] * t[1])
texts = st.one_of(letters, looping)
arguments = st.tuples(
    st.sampled_from([0.5, 0.8, 2.0]),
    st.sampled_from([1.0, 1.5, 1.75]),
    st.sampled_from([1, 2, 3, 40]),
    st.sampled_from([-1, 1, 2, 7, 60]),
    st.sampled_from(["", "2", "13"]),
)


@given(text=texts, more=texts, cuts=st.lists(st.integers(0, 90), max_size=4), argument=arguments)
@example(text=[1] * 120, more=[1, 1, 2], cuts=[1, 60], argument=(0.8, 1.75, 2, -1, ""))
def test_penalties_follow_the_definition_for_any_chunks_of_text(
    text: list[int], more: list[int], cuts: list[int], argument: Any
):
    processor = made(text, *argument)
    bounds = [0, *sorted(min(cut, len(more)) for cut in cuts), len(more)]
    for begin, end in pairwise(bounds):
        processor.extend(more[begin:end])
        assert found(processor) == pytest.approx(defined(text + more[:end], *argument), rel=1e-6)


@given(text=texts, guesses=st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=4), argument=arguments)
def test_a_row_after_guesses_equals_one_after_real_tokens_and_keeps_no_state(
    text: list[int], guesses: list[list[int]], argument: Any
):
    processor = made(text, *argument)
    for several in guesses:
        for count in range(len(several) + 1):
            expected = defined(text + several[:count], *argument)
            assert found(processor, several[:count]) == pytest.approx(expected, rel=1e-6)
        processor.extend(several[:1])
        text = text + several[:1]
        assert found(processor) == pytest.approx(defined(text, *argument), rel=1e-6)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "matches go on across breakers": lambda patch: patch.setattr(dry, "breaker_ids", lambda *_: frozenset()),
    "matches have no bound": lambda patch: patch.setattr(dry, "LONGEST", 60),
    "the allowed length is free as well": lambda patch: patch.setattr(
        dry, "penalties", lambda m, b, allowed, real=dry.penalties: real(m, b, allowed + 1)
    ),
    "the window is of no account": lambda patch: patch.setattr(Dry, "_first", lambda *_: 0),
    "guesses are none of the text": lambda patch: patch.setattr(Dry, "_behind", lambda self, _: self._matches),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_with_one_term_wrong_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch):
    cases = [([1, 2, 3, 1, 2, 4, 5, 1, 2], [3, 1]), ([1] * 120, [1]), ([4, 5, 6, 7] * 3, [4, 5])]
    expected = {case: defined(text + more, 0.8, 1.75, 2, 9, "3") for case, (text, more) in enumerate(cases)}
    expected[1] = defined([1] * 121, 0.8, 1.75, 2, -1, "3")

    def all_found() -> list[Any]:
        windows = [9, -1, 9]
        return [found(made(text, 0.8, 1.75, 2, windows[i], "3"), more) for i, (text, more) in enumerate(cases)]

    assert all_found() == [pytest.approx(one, rel=1e-6) for one in expected.values()]
    MUTANTS[name](monkeypatch)
    assert all_found() != [pytest.approx(one, rel=1e-6) for one in expected.values()]


def test_penalties_are_products_in_double_and_never_infinite():
    table = dry.penalties(0.8, 1.75, 2)
    assert table[:2].tolist() == [0, 0] and table.dtype == np.float32
    product = float(np.float32(0.8))
    for length in range(2, LONGEST + 1):
        assert table[length] == np.float32(product)
        product *= 1.75
    assert np.isfinite(dry.penalties(3e38, 1e30, 1)).all()
    assert LONGEST == MOST_DRY_LENGTH


def test_breakers_are_the_tokens_that_they_end_with():
    assert breaker_ids(Letters(), ("1", "23", "x")) == {1, 3, VOCAB - 1}  # type: ignore[arg-type]
    assert breaker_ids(Letters(), ()) == frozenset()  # type: ignore[arg-type]


def test_breakers_that_cannot_be_encoded_are_the_requests_error():
    class Strict(Letters):
        def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
            raise RequestError("prompt", "'a:' is not a token id", "give ids")

    with pytest.raises(RequestError, match=r"dry_sequence_breakers: they cannot be encoded \('a:' is not a token id\)"):
        breaker_ids(Strict(), (":",))  # type: ignore[arg-type]


def test_a_token_costs_one_pass_over_the_text(monkeypatch: pytest.MonkeyPatch):
    processor = made([1, 2] * 4000, 0.8, 1.75, 2, -1, "")
    looks: list[int] = []
    real = Dry._after
    monkeypatch.setattr(Dry, "_after", lambda self, *args: looks.append(args[-1]) or real(self, *args))
    for token in (1, 2, 1):
        processor.extend([token])
        processor.row((2,))
        processor.row((2, 1))
    assert len(looks) == 9, "one for each token, and one for each row behind guesses"
    looks.clear()
    made([1, 2] * 4000, 0.8, 1.75, 2, -1, "")
    assert len(looks) == LONGEST, "a prompt costs no more, however long it is"


@pytest.mark.parametrize("values", [{}, {"dry_base": 3.0}, {"dry_multiplier": 0.8, "dry_penalty_last_n": 0}])
def test_requests_without_dry_have_no_dry_processor(values: dict[str, Any]):
    assert requested_processors(SamplingParams(**values), ()) == []


def test_dry_acts_after_the_other_penalties():
    params = SamplingParams(dry_multiplier=0.8, repetition_penalty=1.1, dry_sequence_breakers=":")
    assert requested_processors(params, ()) == [("penalties", (1.1, 0.0, 0.0)), ("dry", (0.8, 1.75, 2, -1, (":",)))]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"dry_multiplier": -1.0}, "dry_multiplier: -1.0 is out of range"),
        ({"dry_base": 0.9}, "dry_base: 0.9 is out of range"),
        ({"dry_allowed_length": 0}, "dry_allowed_length: 0 is not an integer from 1 to 50"),
        ({"dry_allowed_length": 51}, "dry_allowed_length: 51 is not an integer from 1 to 50"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers: '' is not a text of at least one character"),
        ({"dry_sequence_breakers": ("a",) * 65}, "dry_sequence_breakers: 65 texts of together 65 characters"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n: -2 is not an integer"),
        ({"typical_p": 0.0}, "typical_p: 0.0 is out of range: it must be above 0"),
        ({"typical_p": 1.1}, "typical_p: 1.1 is out of range"),
        ({"top_n_sigma": -0.5}, "top_n_sigma: -0.5 is out of range: 0 keeps all tokens"),
        ({"xtc_probability": 1.5}, "xtc_probability: 1.5 is out of range"),
        ({"xtc_threshold": 0}, "xtc_threshold: 0 is out of range"),
    ],
)
def test_an_impossible_parameter_is_refused(values: dict[str, Any], text: str):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(text)
