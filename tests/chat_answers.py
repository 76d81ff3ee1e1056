"""Answers in each syntax of models, with the contents that a parser must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from infeng_chat.answers.calls import functions
from infeng_chat.answers.parser import Parser, answer
from infeng_chat.answers.reasoning import FAMILIES, Reasoning
from infeng_chat.answers.sink import call_id
from infeng_chat.contract import Delta, OutputParser
from infeng_chat.syntaxes import SYNTAXES, harmony

Calls = tuple[tuple[str, str], ...]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
THINK = FAMILIES[0]


@dataclass(frozen=True)
class Case:
    """An answer with its expected contents."""

    syntax: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: Calls = ()
    thinks: Reasoning | None = THINK
    inside: bool = False
    name: str = ""
    tools: Sequence[dict[str, Any]] = field(default_factory=lambda: TOOLS)

    def parser(self) -> OutputParser:
        """Return a new parser of such answers."""
        tools = functions(self.tools)
        if self.syntax == "harmony":
            return Parser(harmony.answer(tools), call_id)
        syntax = next((syntax for syntax in SYNTAXES if syntax.name == self.syntax), None)
        return Parser(answer(self.thinks, self.inside, syntax if tools else None, tools), call_id)


def read(parser: OutputParser, pieces: Sequence[str]) -> list[Delta]:
    """Return all deltas of an answer that arrives in pieces."""
    return [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()


def summary(deltas: Sequence[Delta]) -> tuple[str, str, Calls]:
    """Return content, reasoning, and each call's name and arguments; check the order of deltas."""
    calls: list[list[str]] = []
    for delta in deltas:
        assert bool(delta.content) + bool(delta.reasoning) + (delta.tool is not None) == 1, "one thing in each"
        if delta.tool is not None and delta.tool.name is not None:
            assert delta.tool.index == len(calls)
            assert delta.tool.id
            calls.append([delta.tool.name, ""])
        if delta.tool is not None:
            assert delta.tool.index == len(calls) - 1, "the name comes first"
            assert (delta.tool.id is None) == (delta.tool.name is None)
            calls[-1][1] += delta.tool.arguments
    content = "".join(delta.content for delta in deltas)
    return content, "".join(delta.reasoning for delta in deltas), tuple((name, text) for name, text in calls)


WEATHER = ("get_weather", '{"city": "Łódź", "days": 2}')
NOW = ("now", "{}")
ONE = '{"name": "get_weather", "arguments": {"city": "Łódź", "days": 2}}'
TWO = '{"name": "now", "arguments": {}}'
CODER = "<function=get_weather>\n<parameter=city>\nŁódź\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n"
SEED = "<function=get_weather>\n<parameter=city>Łódź</parameter>\n<parameter=days>2</parameter>\n</function>\n"
GLM = "".join(
    f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in (("city", "Łódź"), ("days", "2"))
)
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
COMMAND = '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Łódź", "days": 2}}'
LLAMA = ONE.replace("arguments", "parameters")
COMMENTARY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"
R1 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"

CASES = [
    Case("hermes", f"<tool_call>\n{ONE}\n</tool_call>", calls=(WEATHER,)),
    Case(
        "hermes",
        f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>\n{TWO}\n</tool_call>",
        "Let me see.",
        calls=(WEATHER, NOW),
    ),
    Case("hermes", f"<think>\nHm.\n</think>\n\n<tool_call>{ONE}</tool_call>", reasoning="Hm.", calls=(WEATHER,)),
    Case("hermes", f"<tool_call>{ONE}", calls=(WEATHER,), name="without its end"),
    Case("hermes", '<tool_call>{"arguments": {"days": 2}, "name": "f"}</tool_call>', calls=(("f", '{"days": 2}'),)),
    Case(
        "hermes", '<tool_call>{"name": "f", "parameters": null, "id": [1, {"a": 2}]}</tool_call>', calls=(("f", "{}"),)
    ),
    Case("hermes", '<tool_call>{"name": "f"}</tool_call>', calls=(("f", "{}"),)),
    Case(
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {}}}</tool_call>',
        calls=(("f", "{}"),),
    ),
    Case("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', calls=(("f", '{"a": 1}'),)),
    Case(
        "hermes",
        "<tool_call>{'name': 'f', 'arguments': {'a': 'it\\'s \"x\"', b: [True, None,],},}</tool_call>",
        calls=(("f", '{"a": "it\'s \\"x\\"", "b": [true, null]}'),),
        name="as Python writes it",
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny\\d\\u00e9", "b": -1.5e3}}</tool_call>',
        calls=(("f", '{"a": "x\\ny\\\\d\\u00e9", "b": -1.5e3}'),),
    ),
    Case("hermes", "<tool_call>no</tool_call> It is warm.", "<tool_call>no</tool_call> It is warm."),
    Case("hermes", '<tool_call>{"nam', '<tool_call>{"nam', name="cut before its name"),
    Case("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', calls=(("f", '{"a": "b'),), name="cut later"),
    Case("hermes", "Use <tool_", "Use <tool_"),
    Case("hermes", f"<tool_call>[]</tool_call><tool_call>{TWO}</tool_call>", "", calls=(NOW,), name="none"),
    Case("hermes", f"<tool_call>{ONE}</tool_call>", f"<tool_call>{ONE}</tool_call>", tools=()),
    Case("hermes", "2 < 3 <think> is no tag here\n ", "2 < 3 <think> is no tag here\n "),
    Case("hermes", "Hm.\n</think>\n\nHi", "Hi", "Hm.", inside=True),
    Case("hermes", "<think>\nHm.\n</think>\nHi", "Hi", "Hm.", inside=True, name="opened twice"),
    Case("hermes", "Hm. I do not", "", "Hm. I do not", inside=True),
    Case("hermes", "\n<think></think>\nHi", "Hi"),
    Case("none", "<seed:think> a </seed:think> b", "b", "a", thinks=FAMILIES[1]),
    Case("none", "<|channel>thought\na\n<channel|>b", "b", "a", thinks=FAMILIES[2]),
    Case("none", "<think>a</think>b<tool_call>{}", "b<tool_call>{}", "a"),
    Case("apriel", f'<tool_calls>[{ONE}, {TWO[:-1]}, "id": "1"}}]</tool_calls>', calls=(WEATHER, NOW)),
    Case("granite", f"<|tool_call|>[{ONE}]", calls=(WEATHER,)),
    Case("gigachat", f"I look.<|function_call|>{ONE}", "I look.", calls=(WEATHER,)),
    Case("phi", f"<|tool_call|>[{ONE}]<|/tool_call|>", calls=(WEATHER,)),
    Case("nemotron", f"<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>", calls=(WEATHER, NOW)),
    Case(
        "apertus",
        '<|tools_prefix|>[{"get_weather": {"city": "Łódź", "days": 2}}, {"now": {}}]<|tools_suffix|>',
        calls=(WEATHER, NOW),
    ),
    Case("command", f"<|START_ACTION|>[{COMMAND}]<|END_ACTION|>", calls=(WEATHER,)),
    Case("functions", '<function=get_weather>{"city": "Łódź", "days": 2}</function>', calls=(WEATHER,)),
    Case("functions", "<function=x", "<function=x"),
    Case("mistral", f"[TOOL_CALLS][{ONE}, {TWO}]", calls=(WEATHER, NOW)),
    Case(
        "mistral-names",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Łódź", "days": 2}[TOOL_CALLS]now[ARGS]{}',
        calls=(WEATHER, NOW),
    ),
    Case("mistral-ids", '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Łódź", "days": 2}', calls=(WEATHER,)),
    Case("mistral-names", '[TOOL_CALLS]get_weather{"city": "Łódź", "days": 2}', calls=(WEATHER,)),
    Case(
        "kimi",
        f"<|tool_calls_section_begin|>{KIMI.format(WEATHER[0], 0, WEATHER[1])}{KIMI.format('now', 1, '{}')}"
        "<|tool_calls_section_end|>",
        calls=(WEATHER, NOW),
    ),
    Case(
        "deepseek",
        f"<｜tool▁calls▁begin｜>{V31.format(*WEATHER)}{V31.format(*NOW)}<｜tool▁calls▁end｜>",
        calls=(WEATHER, NOW),
    ),
    Case(
        "deepseek-fenced",
        f"<｜tool▁calls▁begin｜>{R1.format('get_weather', WEATHER[1])}\n{R1.format('now', '{}')}<｜tool▁calls▁end｜>",
        calls=(WEATHER, NOW),
    ),
    Case(
        "glm",
        f"\n<think>Hm.</think>\nOk.\n<tool_call>get_weather\n{GLM}</tool_call>\n<tool_call>now\n</tool_call>",
        "Ok.",
        "Hm.",
        (WEATHER, NOW),
    ),
    Case("glm", "<tool_call>now</tool_call>", calls=(NOW,)),
    Case(
        "qwen-coder",
        f"Ok.\n<tool_call>\n{CODER}</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "Ok.",
        calls=(WEATHER, NOW),
    ),
    Case("qwen-coder", f"{CODER}</tool_call>", calls=(WEATHER,), name="without its begin"),
    Case(
        "qwen-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=x>\n[1]\n"
        "</parameter>\n</function>\n</tool_call>",
        calls=(("get_weather", '{"city": "12", "x": [1]}'),),
    ),
    Case("seed", f"<seed:tool_call>\n{SEED}</seed:tool_call>", calls=(WEATHER,)),
    Case(
        "gemma",
        '<|tool_call>call:get_weather{city:<|"|>Łódź<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>',
        calls=(WEATHER, NOW),
    ),
    Case(
        "gemma",
        '<|tool_call>call:f{a:{b:[<|"|>x"y<|"|>,true]},<|"|>c<|"|>:null}<tool_call|>',
        calls=(("f", '{"a": {"b": ["x\\"y", true]}, "c": null}'),),
    ),
    Case("pythonic", '[get_weather(city="Łódź", days=2), now()]', calls=(WEATHER, NOW)),
    Case("pythonic", "[1, 2] are numbers", "[1, 2] are numbers"),
    Case("pythonic", "[other(a=1)]", "[other(a=1)]"),
    Case("pythonic", "[now(a=[true, {'b': None}], c=null)]", calls=(("now", '{"a": [true, {"b": null}], "c": null}'),)),
    Case("pythonic-tagged", '<|python_start|>[get_weather(city="Łódź", days=2)]<|python_end|>', calls=(WEATHER,)),
    Case(
        "lfm", '<|tool_call_start|>[get_weather(city="Łódź", days=2)]<|tool_call_end|>Wait.', "Wait.", calls=(WEATHER,)
    ),
    Case("llama", LLAMA, calls=(WEATHER,)),
    Case("llama", f'<|python_tag|>{LLAMA}; {{"name": "now", "parameters": {{}}}}', calls=(WEATHER, NOW)),
    Case("llama", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}'),
    Case("llama", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
    Case("harmony", f"{ANALYSIS}<|channel|>final<|message|>Hi", "Hi", "Hm."),
    Case("harmony", ANALYSIS + COMMENTARY.format(*WEATHER), "", "Hm.", (WEATHER,)),
    Case("harmony", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", calls=(NOW,)),
    Case(
        "harmony",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{COMMENTARY.format(*NOW)}",
        "I look.",
        calls=(NOW,),
    ),
    Case("harmony", "Hi", "Hi"),
    Case("harmony", COMMENTARY.format(*NOW), "{}", tools=()),
]
