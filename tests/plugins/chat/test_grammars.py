"""Grammars of calls admit what models write, nothing else, and what they admit is read as calls."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import jsonschema
import pytest
import tiny_model
from chat_answers import (
    CODER,
    COMMENTARY,
    KIMI,
    LLAMA,
    NOW,
    ONE,
    R1,
    SEED,
    TOOLS,
    TWO,
    V31,
    WEATHER,
    Case,
    read,
    summary,
)
from chat_parts import CHATML, MakeChat, write
from infeng_chat.answers.calls import functions
from infeng_chat.syntaxes import SYNTAXES, detected, lark

from infeng_core.api import RequestError

llguidance = pytest.importorskip("llguidance")

DATA = os.environ.get("INFENG_TEST_DATA")
KEY = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>"
TOOL = '{{"tool_name": "{}", "parameters": {}}}'
WITH_ID = "[TOOL_CALLS]{}[CALL_ID]abc123def[ARGS]{}"
EMPTY = "<function=now>\n</function>"

BOTH = {
    "hermes": f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
    "apriel": f"<tool_calls>[{ONE}, {TWO}]</tool_calls>",
    "gemma": '<|tool_call>call:get_weather{city:<|"|>Łódź<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>',
    "granite": f"<|tool_call|>[{ONE}, {TWO}]",
    "phi": f"<|tool_call|>[{ONE}, {TWO}]<|/tool_call|>",
    "nemotron": f"<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>",
    "apertus": f'<|tools_prefix|>[{{"get_weather": {WEATHER[1]}}}, {{"now": {{}}}}]<|tools_suffix|>',
    "command": f"<|START_ACTION|>[{ONE}, {TWO}]<|END_ACTION|>".replace("name", "tool_name").replace(
        "arguments", "parameters"
    ),
    "functions": f"<function=get_weather>{WEATHER[1]}</function><function=now>{{}}</function>",
    "mistral": f"[TOOL_CALLS][{ONE}, {TWO}]",
    "mistral-names": f"[TOOL_CALLS]get_weather[ARGS]{WEATHER[1]}[TOOL_CALLS]now[ARGS]{{}}",
    "mistral-ids": WITH_ID.format(*WEATHER) + WITH_ID.format(*NOW),
    "kimi": f"<|tool_calls_section_begin|>{KIMI.format(WEATHER[0], 0, WEATHER[1])}{KIMI.format('now', 1, '{}')}"
    "<|tool_calls_section_end|>",
    "deepseek": f"<｜tool▁calls▁begin｜>{V31.format(*WEATHER)}{V31.format(*NOW)}<｜tool▁calls▁end｜>",
    "deepseek-fenced": f"<｜tool▁calls▁begin｜>{R1.format(*WEATHER)}\n{R1.format(*NOW)}<｜tool▁calls▁end｜>",
    "glm": f"<tool_call>get_weather\n{KEY.format('city', 'Łódź')}\n{KEY.format('days', 2)}\n</tool_call>\n"
    "<tool_call>now\n</tool_call>",
    "qwen-coder": f"<tool_call>\n{CODER}</tool_call>\n<tool_call>\n{EMPTY}\n</tool_call>",
    "seed": f"<seed:tool_call>\n{SEED}</seed:tool_call>\n<seed:tool_call>\n{EMPTY}\n</seed:tool_call>",
    "pythonic": '[get_weather(city="Łódź", days=2), now()]',
    "pythonic-tagged": '<|python_start|>[get_weather(city="Łódź", days=2), now()]<|python_end|>',
    "lfm": '<|tool_call_start|>[get_weather(city="Łódź", days=2), now()]<|tool_call_end|>',
    "llama": f'{LLAMA}; {{"name": "now", "parameters": {{}}}}',
}
ONLY_ONE = {"harmony": COMMENTARY.format(*WEATHER), "gigachat": f"<|function_call|>{ONE}"}


@pytest.fixture(scope="module")
def tokens() -> object:
    return llguidance.LLTokenizer(tiny_model.tokenizer().to_str(), eos_token=1)


def admits(tokens: object, grammar: str, text: str) -> bool:
    """Return whether an answer that is ``text`` is one of a grammar's."""
    return admits_ids(tokens, grammar, tokens.tokenize_str(text))  # type: ignore[attr-defined]


def admits_ids(tokens: object, grammar: str, ids: list[int]) -> bool:
    """Return the same of token ids."""
    matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def grammar(name: str, parallel: bool, tools: object = TOOLS) -> str:
    syntax = next(syntax for syntax in SYNTAXES if syntax.name == name)
    assert syntax.grammar is not None
    return syntax.grammar(functions(tools), lark.quoted, parallel)  # type: ignore[arg-type]


def test_every_syntax_has_a_grammar() -> None:
    assert {syntax.name for syntax in SYNTAXES if syntax.grammar is not None} == BOTH.keys() | ONLY_ONE.keys()
    assert all(syntax.grammar is not None for syntax in SYNTAXES)


@pytest.mark.parametrize("name", BOTH)
def test_two_calls_are_admitted_if_calls_may_be_parallel(name: str, tokens: object) -> None:
    text = BOTH[name]
    assert summary(read(Case(name, text).parser(), [text])) == ("", "", (WEATHER, NOW))
    assert admits(tokens, grammar(name, parallel=True), text)
    assert not admits(tokens, grammar(name, parallel=False), text)


@pytest.mark.parametrize("name", [*BOTH, *ONLY_ONE])
def test_only_calls_of_the_tools_are_admitted(name: str, tokens: object) -> None:
    text = {**BOTH, **ONLY_ONE}[name]
    alone = grammar(name, True)
    for wrong in (
        "",
        "x",
        f"x{text}",
        f"{text}x",
        text[:-1],
        text.replace("weather", "wether"),
        text.replace("2", "two"),
    ):
        assert not admits(tokens, alone, wrong), wrong


@pytest.mark.parametrize("name", [*BOTH, *ONLY_ONE])
def test_random_samples_of_a_grammar_are_parsed_as_calls(name: str, tokens: object) -> None:
    generator, rules = random.Random(name), grammar(name, True)
    spelled = [tokens.decode_str([token]) for token in range(tiny_model.VOCAB)]  # type: ignore[attr-defined]
    whole = 0
    for _ in range(8):
        matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(rules))
        ids: list[int] = []
        while len(ids) < 160 and not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            allowed = [token for token in range(len(spelled)) if mask[token // 8] >> (token % 8) & 1]
            # Short texts end more often; the grammar's own words are taken in long tokens where there are such.
            ending = [token for token in allowed if spelled[token][:1] in ('"', "}", "<", "]", "")]
            ids.append(generator.choice(ending if ending and generator.random() < 0.6 else allowed))
            assert matcher.consume_token(ids[-1]), matcher.get_error()
        text = tokens.decode_str([token for token in ids if token != 1])  # type: ignore[attr-defined]
        if not matcher.is_stopped() or "\ufffd" in text:
            continue
        whole += 1
        content, reasoning, calls = summary(read(Case(name, text).parser(), [text]))
        assert (content, reasoning) == ("", ""), text
        assert calls, text
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls), text
    assert whole, "none came to its end"


ADDRESS = {"type": "object", "properties": {"zip": {"type": "integer"}, "Street": {"type": "string"}},
           "required": ["Street"]}  # fmt: skip
GEMMA: list[tuple[object, list[str], list[str]]] = [
    ({"a": {"type": "string"}}, ['a:<|"|><|"|>', 'a:<|"|>x < y <b>\n"z"<|"|>'], ["", "a:x", 'a:<|"|>x', 'a:"x"']),
    ({"a": {"enum": ["x", 1, None]}}, ['a:<|"|>x<|"|>', "a:1", "a:null"], ["a:2", "a:x", 'a:<|"|>y<|"|>']),
    ({"a": {"type": "integer", "minimum": 3}}, ["a:3", "a:40"], ["a:2", "a:3.5", "a:-3"]),
    ({"a": {"type": ["boolean", "null"]}}, ["a:true", "a:null"], ["a:True", "a:0"]),
    ({"a": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}},
     ["a:[1]", "a:[1,2]"], ["a:[]", "a:[1,2,3]", "a:[1, 2]"]),
    ({"a": {"type": "array", "items": {"type": "string"}}}, ["a:[]", 'a:[<|"|>x<|"|>,<|"|>y<|"|>]'], ["a:[1]"]),
    ({"a": ADDRESS},
     ['a:{Street:<|"|>x<|"|>}', 'a:{Street:<|"|>x<|"|>,zip:1}'], ["a:{}", 'a:{zip:1,Street:<|"|>x<|"|>}']),
    ({"a": {"anyOf": [{"type": "integer"}, {"const": "none"}]}}, ["a:1", 'a:<|"|>none<|"|>'], ['a:<|"|>one<|"|>']),
    ({"a": {"type": "object", "additionalProperties": {"type": "integer"}}}, ["a:{}", "a:{k:1,l:2}"], ["a:{k:true}"]),
    ({"a": {}}, ["a:1", 'a:[<|"|>x<|"|>,{k:null}]'], ["a:x"]),
    ({"a": {"allOf": [{"type": "integer"}], "description": "d"}}, ["a:1"], ['a:<|"|>x<|"|>']),
    ({"a": {"$ref": "#/$defs/node"}}, ["a:{}", "a:{next:{next:{}}}"], ["a:{next:1}"]),
]  # fmt: skip
"""Properties (``a`` is required), arguments that they admit, and those that they do not."""


@pytest.mark.parametrize(("properties", "right", "wrong"), GEMMA)
def test_gemmas_grammar_admits_exactly_the_arguments_of_the_schema(properties, right, wrong, tokens: object) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    parameters = {"type": "object", "properties": properties, "required": ["a"], "$defs": {"node": node}}
    rules = grammar("gemma", False, [{"function": {"name": "f", "parameters": parameters}}])
    for given in right:
        text = f"<|tool_call>call:f{{{given}}}<tool_call|>"
        assert admits(tokens, rules, text), text
        [(name, arguments)] = summary(read(Case("gemma", text).parser(), [text]))[2]
        assert name == "f"
        jsonschema.validate(json.loads(arguments), parameters)
    for given in wrong:
        assert not admits(tokens, rules, f"<|tool_call>call:f{{{given}}}<tool_call|>"), given


@pytest.mark.parametrize(
    "of",
    [
        {"allOf": [{"type": "object"}, {"required": ["x"]}]},
        {"type": "object", "patternProperties": {"^a": {}}},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_a_schema_that_gemmas_grammar_does_not_support_is_refused(of: object) -> None:
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": of}}}}]
    with pytest.raises(RequestError, match=r"tools: .* tool_choice auto"):
        grammar("gemma", True, tools)


def test_gemmas_quotes_are_tokens_in_the_grammar_if_they_are_special(make_chat: MakeChat, tmp_path: Path) -> None:
    syntax = next(syntax for syntax in SYNTAXES if syntax.name == "gemma")
    assert syntax.grammar is not None
    rules = syntax.grammar(functions(TOOLS), lambda text: f"<[{len(text)}]>", True)  # type: ignore[arg-type]
    assert '<|"|>' not in rules
    assert "<[5]> text <[5]>" in rules


def test_tags_are_tokens_in_the_grammar_if_they_are_special(make_chat: MakeChat, tmp_path: Path) -> None:
    special = llguidance.LLTokenizer((write(tmp_path) / "tokenizer.json").read_text(), eos_token=1)
    template = make_chat(CHATML + "{{ tools | tojson }}{# [TOOL_CALLS] #}")
    made = template.call_grammar(TOOLS)
    assert made is not None
    assert list(made) == ["lark"]
    for spells in (True, False):
        [[_, *ids]] = template.tokenizer.encode([f"[TOOL_CALLS][{ONE}]"], parse_special=spells)
        assert admits_ids(special, made["lark"], ids) is spells


def test_a_grammar_may_be_limited_to_one_tool(make_chat: MakeChat, tokens: object) -> None:
    template = make_chat()  # it writes no tools, so calls are as the system message says
    made = template.call_grammar(TOOLS, name="now", parallel=False)
    assert made is not None
    assert admits(tokens, made["lark"], f"<tool_call>\n{TWO}\n</tool_call>")
    assert not admits(tokens, made["lark"], f"<tool_call>\n{ONE}\n</tool_call>")
    with pytest.raises(RequestError, match="not among the tools"):
        template.call_grammar(TOOLS, name="other")


def test_an_unknown_syntax_has_no_grammar(make_chat: MakeChat) -> None:
    assert make_chat(CHATML + "{{ tools | tojson }}").call_grammar(TOOLS) is None
    assert make_chat().call_grammar([]) is None


def test_a_schema_may_refer_to_its_own_definitions(tokens: object) -> None:
    parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    made = grammar("hermes", False, [{"function": {"name": "f", "parameters": parameters}}])
    assert admits(tokens, made, '<tool_call>\n{"name": "f", "arguments": {"x": 5}}\n</tool_call>')
    assert not admits(tokens, made, '<tool_call>\n{"name": "f", "arguments": {"x": "5"}}\n</tool_call>')


EXPECTED = {
    "Apertus-8B-Instruct": "apertus",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed",
    "GLM-4.6": "glm",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": None,
    "Kimi-K2-Instruct": "kimi",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral-ids",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen-coder",
    "StepFun3.5-Flash": "qwen-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-fenced",
    "deepseek-ai-DeepSeek-V3.1": "deepseek",
    "google-gemma-4-31B-it-interleaved": "gemma",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "llama-cpp-deepseek-r1": "deepseek-fenced",
    "meetkai-functionary-medium-v3.1": "functions",
    "microsoft-Phi-3.5-mini-instruct": None,
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "openai-gpt-oss-120b": "harmony",
    "unsloth-Apriel-1.5": "apriel",
}


@pytest.mark.skipif(DATA is None, reason="INFENG_TEST_DATA is not set")
def test_the_syntax_of_published_templates_is_detected() -> None:
    paths = sorted((Path(DATA or "") / "templates").glob("*.jinja"))
    found = {path.stem: detected(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: syntax and syntax.name for name, syntax in found.items()} == EXPECTED
