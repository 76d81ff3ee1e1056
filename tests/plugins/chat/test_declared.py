"""``response_template`` of tokenizer_config.json: the examples of transformers' documentation, whole and in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from chat_answers import TOOLS, read, summary
from chat_parts import CHATML, MakeChat
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_chat.answers.calls import functions
from infeng_chat.answers.content import read as content
from infeng_chat.answers.declared import Declared, UnknownTemplateError
from infeng_chat.answers.parser import Parser
from infeng_chat.answers.sink import call_id

SMOL: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
CODER = {
    "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
    "close": "</tool_call>",
    "repeats": True,
    "content": "xml-inline",
    "content_args": {
        "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
        "value_parser": {"name": "json", "args": {"allow_non_json": True}},
    },
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
HARMONY = {
    "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
    "close": "<|call|>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}
COMMAND = {
    "open": "<|START_ACTION|>",
    "close": ["<|END_ACTION|>", "<|END|>"],
    "content": "json",
    "transform_each": True,
    "transform": {"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
}


def with_calls(field: dict[str, Any]) -> dict[str, Any]:
    return {"start_anchor": "x", "fields": {"content": {}, "tool_calls": field}}


WEATHER = (("get_weather", '{"city": "Bonn"}'),)
CODED = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>"
HEADER = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
LINES = {"open": "[", "close": "]", "content": "kv-lines", "transform": {"name": "now", "arguments": "{content}"}}
CASES = [
    (SMOL, "<think>\nHm.\n</think>\n\n<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"b\"}}</tool_call>",
     ("", "Hm.", (("now", '{"a": "b"}'),))),
    (SMOL, "Hello <b>you</b><|im_end|>", ("Hello <b>you</b>", "", ())),
    (SMOL, "So:\n<tool_call>no</tool_call> Hm", ("So:\n<tool_call>no</tool_call> Hm", "", ())),
    (with_calls(CODER), f"Ok.\n{CODED}",
     ("Ok.", "", WEATHER)),
    (with_calls(CODER), "<tool_call> is a tag", ("<tool_call> is a tag", "", ())),
    (with_calls(HARMONY), HEADER + '{"city": "Bonn"}<|call|>',
     ("", "", WEATHER)),
    (with_calls(COMMAND), '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Bonn"}}, '
     '{"tool_name": "now", "parameters": {}}]<|END|>', ("", "", (*WEATHER, ("now", "{}")))),
    (with_calls({**COMMAND, "close_pattern": r"<\|END_\w+\|>", "close": None}),
     '<|START_ACTION|>[{"tool_name": "get_weather", "parameters": {"city": "Bonn"}}]<|END_X|>y', ("y", "", WEATHER)),
    (with_calls(LINES),
     "[a: 1\nb:x\n\n]", ("", "", (("now", '{"a": "1", "b": "x"}'),))),
]  # fmt: skip


def parser(template: dict[str, Any]) -> Parser:
    return Parser(Declared.of(template).reader(functions(TOOLS)), call_id)


@pytest.mark.parametrize(("template", "text", "expected"), CASES)
def test_an_answer_in_one_piece_and_by_characters_is_parsed_the_same(
    template: dict[str, Any], text: str, expected: Any
) -> None:
    assert summary(read(parser(template), [text])) == expected
    assert summary(read(parser(template), list(text))) == expected


@settings(max_examples=examples(100), deadline=None)
@given(case=st.sampled_from(CASES), place=st.integers(0, 200), other=st.integers(0, 200))
def test_any_cut_gives_the_same(case: Any, place: int, other: int) -> None:
    template, text, expected = case
    first, second = sorted((place, other))
    assert summary(read(parser(template), [text[:first], text[first:second], text[second:]])) == expected


def test_arguments_get_the_types_of_their_schema() -> None:
    text = "<tool_call><function=get_weather><parameter=city>12</parameter><parameter=days>3</parameter></tool_call>"
    template = with_calls({**CODER, "content_args": {"tag_pattern": CODER["content_args"]["tag_pattern"]}})  # type: ignore[index]
    assert summary(read(parser(template), [text]))[2] == (("get_weather", '{"city": "12", "days": 3}'),)


def test_a_field_that_the_prompt_opens_continues_in_the_answer(make_chat: MakeChat) -> None:
    template = make_chat(CHATML.replace("assistant\n{%", "assistant\n<think>\n{%"), response_template=SMOL)
    prompt = template.prompt([{"role": "user", "content": "<think>Hi"}])
    assert summary(read(template.parser(prompt), ["Hm.\n</think>\n", "So."])) == ("So.", "Hm.", ())
    assert template.parser(prompt).reads_special_tokens


def test_without_tools_calls_stay_text(make_chat: MakeChat) -> None:
    template = make_chat(response_template=SMOL)
    prompt = template.prompt([{"role": "user", "content": "Hi"}])
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert summary(read(template.parser(prompt), [text])) == (text, "", ())
    assert summary(read(template.parser(prompt, tools=TOOLS), [text])) == ("", "", (("now", "{}"),))


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"fields": {"a": 1}},
        {"fields": {"a": {}, "b": {}}},
        {"fields": {"a": {"open": [5]}}},
        {"fields": {"a": {"open_pattern": r"\s*<a>"}}},
        {"fields": {"a": {"open_pattern": "<a>|<b>"}}},
        {"fields": {"a": {"open_pattern": "<a>(?=b)"}}},
        {"fields": {"a": {"open": "x", "unheard": 1}}},
        {"start_anchor_pattern": "(", "fields": {"a": {}}},
        {"start_anchor": 5, "fields": {"a": {}}},
    ],
)
def test_an_unsupported_response_template_is_ignored(broken: dict[str, Any], make_chat: MakeChat) -> None:
    with pytest.raises(UnknownTemplateError):
        Declared.of(broken)
    template = make_chat(response_template=broken)
    assert summary(read(template.parser(template.prompt([{"role": "user", "content": "x"}])), ["y"])) == ("y", "", ())


@pytest.mark.parametrize(
    ("spec", "text", "value"),
    [
        ({"content": "int"}, " 42 ", 42),
        ({"content": "float"}, "1.5", 1.5),
        ({"content": "bool"}, " True", True),
        ({"content_args": {"strip": False}}, " x ", " x "),
        ({"content": "json", "content_args": {"unquoted_keys": True}}, '{city: "L"}', {"city": "L"}),
        (
            {"content": "json", "content_args": {"string_delims": [['<|"|>', '<|"|>']]}},
            '{a: <|"|>"x"<|"|>}',
            {"a": '"x"'},
        ),
        ({"content": "json", "content_args": {"allow_non_json": True}}, " x ", "x"),
        ({"content": "kv-lines", "content_args": {"value_parser": {"name": "int"}}}, "a: 1\nb: 2", {"a": 1, "b": 2}),
    ],
)
def test_contents_are_parsed_by_their_types(spec: dict[str, Any], text: str, value: Any) -> None:
    assert content(spec, text) == value


@pytest.mark.parametrize("spec", [{"content": "json"}, {"content": "int"}, {"content": "unheard"}])
def test_a_content_that_is_not_of_its_type_is_an_error(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        content(spec, "x")
