"""What is read of an answer does not depend on how it was cut, and every beginning of it is valid."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from chat_answers import CASES, TOOLS, Case, read, summary
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_chat.answers.cursor import Cursor
from infeng_chat.answers.parser import Plain
from infeng_chat.contract import Delta
from infeng_chat.syntaxes import SYNTAXES

NAMES = [f"{case.syntax}: {case.name or case.text[:40]}" for case in CASES]


def cuts(text: str, places: list[int]) -> list[str]:
    """Return a text cut at places."""
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_answer_in_one_piece_is_parsed(case: Case) -> None:
    assert summary(read(case.parser(), [case.text])) == (case.content, case.reasoning, case.calls)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_answer_character_by_character_is_parsed_the_same(case: Case) -> None:
    assert summary(read(case.parser(), list(case.text))) == (case.content, case.reasoning, case.calls)


@settings(max_examples=examples(150), deadline=None)
@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_gives_the_same(case: Case, places: list[int]) -> None:
    assert summary(read(case.parser(), cuts(case.text, places))) == (case.content, case.reasoning, case.calls)


def test_any_cut_of_a_broken_answer_gives_the_same_deltas() -> None:
    generator = random.Random(3)
    words = sorted({case.text[begin : begin + 9] for case in CASES for begin in range(0, len(case.text), 9)})
    for _ in range(500):
        text = "".join(generator.choices(words, k=generator.randint(1, 12)))
        case = Case(generator.choice([*SYNTAXES]).name, text, inside=generator.random() < 0.2)
        whole = summary(read(case.parser(), [text]))
        assert whole == summary(read(case.parser(), list(text))), (case.syntax, text)
        some = [generator.randrange(len(text)) for _ in range(3)]
        assert whole == summary(read(case.parser(), cuts(text, some))), (case.syntax, text, some)


@pytest.mark.parametrize("case", [case for case in CASES if case.calls], ids=lambda case: case.syntax)
def test_arguments_are_a_prefix_of_valid_json_at_any_time(case: Case) -> None:
    parser, so_far = case.parser(), ""
    for letter in case.text:
        for delta in parser.push(letter):
            if delta.tool is not None and delta.tool.index == 0:
                so_far += delta.tool.arguments
                assert case.calls[0][1].startswith(so_far)
    for name, arguments in case.calls:
        assert name
        assert case.name == "cut later" or isinstance(json.loads(arguments), dict)


def test_long_arguments_are_streamed() -> None:
    parser = CASES[0].parser()
    parser.push('<tool_call>{"name": "f", "arguments": {"a": "')
    [delta] = parser.push("a long text")
    assert delta.tool is not None
    assert delta.tool.arguments == "a long text"


def test_reasoning_and_content_are_streamed() -> None:
    parser = CASES[0].parser()
    assert parser.push("<think>I") == [Delta(reasoning="I")]
    assert parser.push(" think</th") == [Delta(reasoning=" think")]
    assert parser.push("ink>\n\nSo") == [Delta(content="So")]
    assert parser.push(" it is <") == [Delta(content=" it is")]
    assert parser.push("3") == [Delta(content=" <3")]


def test_an_answer_without_tags_is_returned_unchanged() -> None:
    assert Plain().push(" a \n") == [Delta(content=" a \n")]
    assert Plain().push("") == Plain().finish() == []


def test_every_syntax_has_a_test_case() -> None:
    assert {syntax.name for syntax in SYNTAXES} <= {case.syntax for case in CASES if case.calls} - {"none"}


def test_no_tag_is_a_prefix_of_another() -> None:
    for syntax in SYNTAXES:
        tags = (*syntax.opens, "<think>")
        assert not [(a, b) for a in tags for b in tags if a != b and b.startswith(a)]


def test_a_cursor_drops_text_that_was_read() -> None:
    cursor = Cursor()
    steps = cursor.stream(("<end>",), lambda text: None)
    for _ in range(100):
        cursor.feed("x" * 100)
        next(steps)
    assert len(cursor.text) <= 200


def test_endlessly_nested_brackets_are_not_a_call() -> None:
    text = '<tool_call>{"name": "f", "x": ' + "[" * 5000
    assert summary(read(Case("hermes", text).parser(), [text]))[0] == text


def test_tools_may_be_given_as_bare_functions() -> None:
    bare = [tool["function"] for tool in TOOLS]
    case = Case("llama", '{"name": "now", "parameters": {}}', tools=bare)
    assert summary(read(case.parser(), [case.text]))[2] == (("now", "{}"),)
