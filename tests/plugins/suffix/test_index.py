"""The index of grams finds what a search through all tokens finds, in bounded time, and forgets without a rest."""

from __future__ import annotations

from itertools import count, takewhile

import numpy as np
import pytest
from drawn import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from infeng_suffix.chances import AGREED, ALONE, FEW, MOST, NEAR, Chances, kind_of
from infeng_suffix.index import DEPTH, LONG, PLACES, SHORT, Index
from infeng_suffix.text import Text
from infeng_suffix.vote import Source, continuation

Place = tuple[int, int, int]
"""(number of the text, position, length)."""


def indexed(index: Index, number: int, tokens: list[int]) -> Text:
    """Return a text whose tokens but the last are in the index."""
    text = Text(number, tokens)
    if len(tokens) > 1:
        index.add(text, len(tokens) - 1)
    return text


def equal(tokens: list[int], at: int, own: list[int]) -> int:
    """Return how many tokens up to position ``at`` are those at the end of ``own``."""
    most = min(at + 1, len(own), DEPTH)
    return len(list(takewhile(lambda back: tokens[at - back] == own[len(own) - 1 - back], range(most))))


def naive(texts: list[list[int]], own: list[int]) -> list[Place]:
    """Return the places of the end of ``own`` by comparing it with every position of the texts, the latest first."""

    for size in (LONG, SHORT):
        found = [
            (number, at, equal(tokens, at, own))
            for number, tokens in enumerate(texts)
            for at in range(len(tokens) - 1)
            if equal(tokens, at, own) >= size
        ]
        if found:
            return found[-PLACES:][::-1]
    return []


def places(index: Index, text: Text) -> list[Place]:
    return [(match.text.number, match.position, match.length) for match in index.matches(text)]


few = st.lists(st.integers(0, 2), max_size=60)  # few different tokens: much repeats


@settings(max_examples=examples(800), deadline=None)
@given(texts=st.lists(few, max_size=4), own=few)
@example(texts=[], own=[0] * 9)
def test_matches_are_those_of_a_naive_search(texts: list[list[int]], own: list[int]) -> None:
    index = Index()
    all_texts = [*texts, own]
    made = [indexed(index, number, tokens) for number, tokens in enumerate(all_texts)]
    assert places(index, made[-1]) == naive(all_texts, own)


@settings(max_examples=examples(400), deadline=None)
@given(texts=st.lists(few, min_size=2, max_size=4), cuts=st.lists(st.integers(0, 60), min_size=3, max_size=3), own=few)
def test_after_the_beginnings_of_texts_were_dropped_the_rest_is_found(
    texts: list[list[int]], cuts: list[int], own: list[int]
) -> None:
    index, kept = Index(), []
    for number, (tokens, cut) in enumerate(zip(texts, [*cuts, 0], strict=False)):
        text = indexed(index, number, tokens)
        cut = min(cut, text.held)
        for _ in range(cut):  # one by one, as for an answer that gives way to another
            index.trim(text, 1)
        kept.append((cut, tokens))
    text = indexed(index, len(kept), own)
    found = places(index, text)
    rest = [*(tokens[cut:] for cut, tokens in kept), own]
    moved = [(number, at - [*(cut for cut, _ in kept), 0][number], length) for number, at, length in found]
    if len(all_places([*texts, own], own)) <= PLACES:  # else it depends on which were the latest at the time
        assert moved == naive(rest, own)
    assert set(moved) <= set(all_places(rest, own))
    for number in range(len(kept)):
        if number in index.texts:
            index.trim(index.texts[number], index.texts[number].held)
    index.trim(text, text.held)
    assert not index.texts and not index._places, "nothing is left"


def all_places(texts: list[list[int]], own: list[int]) -> list[Place]:
    """Return all places at which at least ``SHORT`` tokens are equal."""
    ends = ((number, at) for number, tokens in enumerate(texts) for at in range(len(tokens) - 1))
    found = ((number, at, equal(texts[number], at, own)) for number, at in ends)
    return [place for place in found if place[2] >= SHORT]


def test_a_text_may_come_in_any_portions() -> None:
    tokens = np.random.default_rng(0).integers(0, 4, 300).tolist()
    whole, parts = Index(), Index()
    text, slow = indexed(whole, 0, tokens), Text(0, tokens)
    for portion in (1, 2, 7, 50, 239):
        parts.add(slow, portion)
    assert places(parts, slow) == places(whole, text)


@pytest.mark.parametrize("tokens", [[7] * 4000, [1, 2] * 2000])
def test_a_look_up_in_repeated_tokens_compares_few_places(tokens: list[int]) -> None:
    index = Index()
    text = indexed(index, 0, tokens)
    matches = index.matches(text)
    assert 0 < len(matches) <= PLACES
    assert all(match.length == DEPTH for match in matches)
    assert max(len(found) if isinstance(found, list) else 1 for found in index._places.values()) <= PLACES
    guesses = continuation(text, matches, Chances(), 16)
    assert [guess.token for guess in guesses] == tokens[: len(guesses)] and len(guesses) == 16


def test_places_that_agree_go_on_and_others_leave() -> None:
    index = Index()
    for number, tail in enumerate([[50, 60, 61], [50, 60, 62], [50, 70, 71]]):
        indexed(index, number, [1, 2, 3, 4, *tail, 9])
    text = indexed(index, 9, [8, 2, 3, 4])
    chances = Chances()
    chances._rates = [1.0] * len(chances._rates)
    guesses = continuation(text, index.matches(text), chances, 5)
    assert [guess.token for guess in guesses][:2] == [50, 60]
    assert guesses[0].slot == chances.slot(AGREED, 3)
    assert guesses[1].slot == chances.slot(MOST, 4)
    assert guesses[2].slot == chances.slot(FEW, 5)
    assert [kind_of(1.0, 1), kind_of(1.0, 2), kind_of(0.6, 3), kind_of(0.5, 2)] == [ALONE, AGREED, MOST, FEW]


@given(st.lists(st.integers(0, 1), max_size=50), st.lists(st.integers(0, 1), min_size=3, max_size=30))
def test_guesses_are_what_follows_the_latest_of_equal_matches_or_a_majority(other: list[int], own: list[int]) -> None:
    index = Index()
    indexed(index, 0, other)
    text = indexed(index, 1, own)
    matches = index.matches(text)
    guesses = continuation(text, matches, Chances(), 16)
    assert bool(guesses) == bool(matches)
    joined = {0: other, 1: own + [guess.token for guess in guesses]}
    for step, guess in zip(count(), guesses):  # some place goes on like this
        assert any(
            joined[match.text.number][match.position + 1 : match.position + 2 + step]
            == [one.token for one in guesses[: step + 1]]
            for match in matches
        ), guess


CHANGES = {
    "another token": ([*range(100, 120), 7], 121),
    "two other tokens": ([*range(100, 120), 7, 8], 122),
    "a new token": ([*range(100, 120), 7], 120),
    "six new tokens": ([*range(100, 120), 1, 2, 3, 4, 5, 6], 120),
    "a token less": ([*range(100, 120)], 121),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_a_text_goes_on_near_where_it_left_its_source(change: str) -> None:
    index, source = Index(), Source()
    indexed(index, 0, list(range(100, 160)))
    written, following = CHANGES[change]
    text = Text(1, [])
    near = None
    for token in [*written, following]:
        text.tokens.append(token)
        near = source.follow(text, index.matches(text), index)
    if change == "a token less":  # the source's end is still what it was
        assert near is None or near.position == following - 100
    else:
        assert near is not None and (near.text.number, near.position, near.length) == (0, following - 100, 1)
    guesses = continuation(text, index.matches(text), Chances(), 4, near)
    assert guesses and guesses[0].token == following + 1
    assert {guess.slot for guess in guesses} <= {Chances().slot(NEAR, length) for length in range(1, 40)}


def test_a_source_that_was_left_for_good_or_dropped_is_searched_no_more() -> None:
    index, source = Index(), Source()
    other = indexed(index, 0, list(range(100, 160)))
    text = Text(1, range(100, 110))
    assert source.follow(text, index.matches(text), index) is None
    for token in range(1, 30):
        text.tokens.append(token)
        assert source.follow(text, index.matches(text), index) is None
    text.tokens.append(111)
    assert source.follow(text, index.matches(text), index) is None
    text.tokens.extend(range(112, 122))
    source.follow(text, index.matches(text), index)
    index.trim(other, other.held)
    text.tokens.extend([5, 123])
    assert source.follow(text, index.matches(text), index) is None


def test_rates_go_to_what_came_true_lately() -> None:
    chances = Chances()
    slot = chances.slot(AGREED, 10)
    for _ in range(200):
        chances.learn(slot, True)
    assert chances.of(slot) > 0.98
    for _ in range(100):
        chances.learn(slot, False)
    assert chances.of(slot) < 0.06
    assert chances.of(chances.slot(ALONE, 10)) == Chances().of(slot) * 0.9, "each kind has its own"
    assert len({chances.slot(kind, length) for kind in range(5) for length in range(1, 99)}) == len(chances._rates)
