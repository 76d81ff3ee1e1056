"""The masks: a text may go on exactly as its grammar says, and end where that ends, whatever was guessed meanwhile."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grammar_parts import Make, allowed, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infeng_grammar.processor import Grammar, Grammars
from llguidance import LLParserLimits

from infeng_core.api import RequestError, Vocabulary

Spell = Callable[[str], list[int]]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "ages"],
    "additionalProperties": False,
}
LARK = 'start: sum\nsum: product ("+" product)*\nproduct: NUMBER | "(" sum ")"\nNUMBER: /[0-9]+/\n'
GBNF = 'root ::= "move " [a-h] [1-8] ("-" [a-h] [1-8])? "\\n"\n'

TEXTS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"choice": ["yes", "yes, sir", "no"]}, ["yes", "yes, sir", "no"], ["ye", "yes, ", "nope", "y", " yes", ""]),
    ({"choice": ["a|b", "c*", '"q"', "</s><s>", "é\n"]}, ["a|b", "c*", '"q"', "</s><s>", "é\n"], ["a", "c", "é", "q"]),
    ({"regex": "[0-9]{3}-[a-z]+"}, ["123-a", "000-zebra"], ["12-a", "123-", "123-A", "1234-a"]),
    ({"regex": "(?i)tin|lion"}, ["TIN", "Lion"], ["tinlion", "li"]),
    ({"lark": LARK}, ["1", "12+(3+4)", "((5))"], ["1+", "(1", "+1", "1 + 2"]),
    ({"gbnf": GBNF}, ["move a1\n", "move b7-h8\n"], ["move a9\n", "move a1", "move a1-\n"]),
    ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", '{"a":1}', '{"a": 1,"b": 2}', "{ }", '{"a": }']),
    ({"json_schema": SCHEMA}, ['{"name": "x", "ages": [1, 2]}'], ['{"name": "x"}', '{"ages": [], "name": "x"}', "{}"]),
    ({"json_schema": json.dumps(SCHEMA)}, ['{"name": "", "ages": []}'], ['{"name": 1, "ages": []}']),
    ({"json_schema": SCHEMA, "whitespace": False}, ['{"name":"x","ages":[1,2]}'], ['{"name": "x", "ages": [1, 2]}']),
    ({"json_schema": True}, ["5", '"x"', "[null]", "{}"], ["x", "[1"]),
    (
        {"json_object": True, "whitespace": True},
        ["{}", '{"a": 1}', '{"a":1,"b":[ 1, 2 ]}', '{\n  "a": {\n    "b": 1\n  }\n}', "{\n" + 40 * " " + "}"],
        ['{"a":  1}', "{\n\n}", "{\n" + 41 * " " + "}", " {}", "{} "],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "right", "wrong"), TEXTS, ids=lambda value: str(value)[:30])
def test_masks_admit_the_texts_of_the_grammar_and_no_others(
    make: Make, spell: Spell, vocabulary: Vocabulary, argument: dict[str, Any], right: list[str], wrong: list[str]
):
    [end] = vocabulary.ends
    for text in right:
        ids = spell(text)
        assert walk(make(argument), ids, end) == len(ids) + 1, text
    for text in wrong:
        ids = spell(text)
        assert walk(make(argument), ids, end) <= len(ids), text


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6, unique=True), st.data())
def test_any_text_can_be_a_choice(make: Make, spell: Spell, vocabulary: Vocabulary, texts: list[str], data: Any):
    [end] = vocabulary.ends
    for text in texts:
        ids = spell(text)
        assert walk(make({"choice": texts}), ids, end) == len(ids) + 1
    other = data.draw(st.text(max_size=6))
    if other not in texts:
        ids = spell(other)
        assert walk(make({"choice": texts}), ids, end) <= len(ids)


def test_special_tokens_and_columns_without_a_token_are_never_allowed(
    make: Make, grammars: Grammars, vocabulary: Vocabulary
):
    tokens, [end] = grammars._known(), vocabulary.ends
    special = {id_ for id_ in range(vocabulary.tokenizer.vocab_size) if tokens.library.is_special_token(id_)}
    assert end in special and len(special) > 1
    processor = make({"lark": 'start: ANY\nANY: /(.|\\n)*/ | ~"x"'})  # bytes of any value
    found = allowed(processor)
    assert len(found) > vocabulary.tokenizer.vocab_size / 2
    assert found & special == {end}
    assert max(found) < vocabulary.tokenizer.vocab_size < vocabulary.size


def test_only_end_tokens_may_follow_a_complete_text(make: Make, spell: Spell, vocabulary: Vocabulary):
    [end] = vocabulary.ends
    processor = make({"choice": ["yes"]})
    processor.extend(spell("yes"))
    assert allowed(processor) == {end} == allowed(processor, [end]) == allowed(processor, [end, end])
    assert processor.forced() == []
    processor.extend([end])
    assert allowed(processor) == {end} == allowed(processor, [end])
    processor.extend([end, end])
    assert allowed(processor) == {end}


def test_every_end_token_may_end_a_text_even_one_that_spells_something(vocabulary: Vocabulary, spell: Spell):
    [end] = vocabulary.ends
    [letter] = spell("y")
    other = Grammars(dataclasses.replace(vocabulary, ends=(end, letter)))
    processor: Any = other.make({"regex": "[xyz]{2}"}, ())
    assert letter not in allowed(processor) and end not in allowed(processor)
    processor.extend(spell("x"))
    processor.extend(spell("z"))
    assert allowed(processor) == {end, letter}


@pytest.fixture(scope="module")
def random_walk(make: Make, spell: Spell, vocabulary: Vocabulary) -> Callable[..., list[int]]:
    """Return ``random_walk(argument, seed)``: tokens of a text that a grammar allows, drawn evenly."""
    return lambda argument, seed: drawn(make, argument, seed, spell(argument.get("after", "")), vocabulary.ends[0])


def drawn(make: Make, argument: Any, seed: int, first: list[int], end: int, most: int = 40) -> list[int]:
    draw, processor, tokens = random.Random(seed), make(argument), list(first)
    processor.extend(first)
    while len(tokens) < most and (not tokens or tokens[-1] != end):
        tokens.append(draw.choice(sorted(allowed(processor))))
        processor.extend(tokens[-1:])
    return tokens


ARGUMENTS: list[dict[str, Any]] = [
    *(argument for argument, _, _ in TEXTS),
    {"json_schema": SCHEMA, "after": "</think>"},
    {"choice": ["left", "right"], "after": "\n"},
]


@pytest.mark.parametrize("argument", ARGUMENTS, ids=lambda value: str(value)[:40])
def test_a_mask_depends_on_the_tokens_alone(
    make: Make, random_walk: Callable[..., list[int]], argument: dict[str, Any]
):
    for seed in range(2):
        tokens = random_walk(argument, seed)
        others = random_walk(argument, seed + 100)
        plain = make(argument)
        expected = []
        for place in range(len(tokens)):
            expected.append(allowed(plain))
            plain.extend(tokens[place : place + 1])
        draw, guessing, place = random.Random(seed), make(argument), 0
        while place < len(tokens):
            right = draw.randrange(5)
            guesses = tokens[place : place + right]
            branch = [id_ for id_ in others if place == 0][: draw.randrange(5)]
            for path in (guesses, branch) if draw.random() < 0.5 else (branch, guesses):
                for count in range(len(path) + 1):
                    if path[:count] == tokens[place : place + count] and place + count < len(tokens):
                        assert allowed(guessing, path[:count]) == expected[place + count]
                    elif count == 0 or path[count - 1] in allowed(guessing, path[: count - 1]):
                        allowed(guessing, path[:count])
                    else:
                        break
                if draw.random() < 0.3:
                    guessing.forced()
            count = draw.randrange(1, 4)
            guessing.extend(tokens[place : place + count])
            place += count


@pytest.mark.parametrize("argument", ARGUMENTS, ids=lambda value: str(value)[:40])
def test_forced_tokens_are_the_only_ones_their_masks_allow(
    make: Make, random_walk: Callable[..., list[int]], argument: dict[str, Any]
):
    lengths = []
    for seed in range(4):
        tokens = random_walk(argument, seed)
        processor = make(argument)
        for token in tokens:
            forced = processor.forced()
            lengths.append(len(forced))
            for place, one in enumerate(forced):
                assert allowed(processor, forced[:place]) == {one}
            assert forced == processor.forced()
            processor.extend([token])
    assert max(lengths) > 1 or "properties" not in str(argument)


def test_a_forced_run_stops_at_a_choice_or_at_the_end(make: Make, vocabulary: Vocabulary):
    [end] = vocabulary.ends
    processor = make({"choice": ["emerald city"]})
    forced = processor.forced()
    assert len(forced) > 1
    processor.extend(forced)
    assert allowed(processor) == {end}


class TestAfter:
    def test_the_text_is_unconstrained_until_then_but_may_not_end(
        self, make: Make, spell: Spell, vocabulary: Vocabulary
    ):
        [end] = vocabulary.ends
        processor = make({"choice": ["yes", "no"], "after": "</think>"})
        for text in ("Let me think.\n", "yes no <", "/think", " </think", ">"):
            found = allowed(processor)
            assert end not in found and len(found) > vocabulary.tokenizer.vocab_size * 0.9
            processor.extend(spell(text))
        for text in ("yes", "no"):
            assert spell(text)[0] in allowed(processor)
        assert walk(processor, spell("no"), end) == len(spell("no")) + 1

    def test_a_token_may_hold_only_whitespace_behind_the_awaited_text(
        self, grammars: Grammars, make: Make, vocabulary: Vocabulary
    ):
        spelt = grammars._known().spelt()
        after = b"he"
        processor = make({"choice": ["x"], "after": "he"})
        found = allowed(processor)
        over = {id_ for id_, text in enumerate(spelt) if after in text and text.split(after, 1)[1].strip()}
        assert over and not over & found
        blank = {id_ for id_, text in enumerate(spelt) if after in text and not text.split(after, 1)[1].strip()}
        assert blank <= found
        h = next(id_ for id_, text in enumerate(spelt) if text.endswith(b"h") and len(text) > 1 and after not in text)
        assert h in found
        behind = allowed(processor, [h])
        assert not {id_ for id_, text in enumerate(spelt) if text.startswith(b"e") and text[1:].strip()} & behind
        assert {id_ for id_, text in enumerate(spelt) if text == b"e"} <= behind

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text("ab ", min_size=1, max_size=4), st.text("ab ", max_size=14))
    def test_the_awaited_text_is_found_at_any_position(
        self, make: Make, spell: Spell, vocabulary: Vocabulary, after: str, before: str
    ):
        processor = make({"choice": ["x"], "after": after})
        text = before + "b" + after
        first = text.index(after) + len(after)
        for place, letter in enumerate(text[:first]):
            assert len(allowed(processor)) > 10, (place, letter)
            processor.extend(spell(letter))
        assert allowed(processor) <= {id_ for id_ in range(vocabulary.size) if id_ in spell("x")}


def test_a_token_outside_the_grammar_is_an_error_of_its_request(make: Make, spell: Spell):
    processor = make({"choice": ["yes"]})
    with pytest.raises(RequestError, match=r"grammar choice: .*doesn't satisfy the grammar"):
        processor.extend(spell("no"))


def test_a_step_beyond_the_librarys_limits_ends_its_request(
    vocabulary: Vocabulary, spell: Spell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("infeng_grammar.compiled.LIMITS", LLParserLimits(step_max_items=300, verbose_errors=False))
    processor: Any = Grammars(vocabulary).make({"lark": 'start: a\na: "x" a "y" | "x" a | "x"'}, ())
    with pytest.raises(RequestError, match="grammar lark: "):
        for _ in range(1000):
            processor.extend(spell("x"))
            processor.row(())


def test_masks_share_one_array_that_the_next_mask_overwrites(make: Make, spell: Spell):
    processor = make({"regex": "ab+"})
    first = processor.row(()).allowed
    assert first is not None and first.dtype == np.uint32
    copy = first.copy()
    processor.extend(spell("a"))
    assert not np.array_equal(processor.row(()).allowed, copy)  # type: ignore[arg-type]


def test_the_factory_makes_grammar_processors(make: Make):
    assert isinstance(make({"regex": "a"}), Grammar)
