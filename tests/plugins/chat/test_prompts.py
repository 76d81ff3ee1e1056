"""Published templates give the prompts that transformers gives; what a template does not take is put otherwise."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from chat_parts import CHATML, MakeChat
from goldens.chat_conversations import CALLED, CONVERSATIONS, REFUSED, TOOLS, digest, variables
from infeng_chat.model import ModelTemplate

from infeng_core.api import RequestError

DATA = os.environ.get("INFENG_TEST_DATA")
GOLDENS = json.loads((Path(__file__).parents[2] / "goldens" / "chat_prompts.json").read_text())["prompts"]
FAST = {
    "Apertus-8B-Instruct",
    "Kimi-K2-Instruct",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "openai-gpt-oss-120b",
}
"""Of each kind one; the others are in the slow suite."""
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(GOLDENS)]
HI = [{"role": "user", "content": "Hi"}]
ARGUMENTS = '{"city": "Łódź", "days": 2}'


def prompt(template: ModelTemplate, conversation: dict[str, Any]) -> str:
    more = variables(conversation)
    generates = more.pop("add_generation_prompt", True)
    tools = conversation.get("tools", ())
    messages = conversation["messages"]
    return template.prompt(messages, tools=tools, variables=more, add_generation_prompt=generates).text


@pytest.mark.skipif(DATA is None, reason="INFENG_TEST_DATA is not set")
@pytest.mark.parametrize("name", NAMES)
def test_a_published_template_gives_the_prompts_of_transformers(name: str, make_chat: MakeChat) -> None:
    goldens = GOLDENS[name]
    template = make_chat((Path(DATA or "") / "templates" / f"{name}.jinja").read_text(encoding="utf-8"))
    for title, conversation in CONVERSATIONS.items():
        if "tools" not in conversation or template.takes_tools:
            assert digest(prompt(template, conversation)) == goldens[title], title
    forms = [goldens[title] for title in CALLED if goldens[title] != REFUSED]
    for title, conversation in CALLED.items() if template.takes_tools else ():  # whatever form the client sends
        if forms:
            own = goldens[title] if title == "called" and goldens[title] != REFUSED else forms[0]
            assert digest(prompt(template, conversation)) == own, title
        else:  # it changes a list, which transformers' sandbox does not allow
            with pytest.raises(RequestError, match="unsafe"):
                prompt(template, conversation)


def test_a_model_without_a_template_gets_a_plain_one(make_chat: MakeChat) -> None:
    template = make_chat(None)
    turns = [
        {"role": "system", "content": "Be terse."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    made = template.prompt(turns)
    assert template.name == "plain"
    assert made.text == "Be terse.\n\nUser: Hi\nAssistant: Hello\nUser: Bye\nAssistant:"
    assert made.stop == ("\nUser:",)


def test_a_system_message_that_a_template_refuses_goes_before_the_users_text(make_chat: MakeChat) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    template = make_chat(refuses + CHATML)
    made = template.prompt([{"role": "system", "content": "Be terse."}, *HI])
    assert made.text == "<|im_start|>user\nBe terse.\n\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_tools_that_a_template_does_not_write_go_into_the_system_message(make_chat: MakeChat) -> None:
    made = make_chat().prompt(HI, tools=TOOLS)
    assert made.text.startswith("<|im_start|>system\n")
    assert '"name": "get_weather"' in made.text
    assert "<tool_call>" in made.text


def test_parts_of_a_content_are_joined_for_templates_that_take_texts(make_chat: MakeChat) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": " there"}]
    assert "user\nHi there<" in make_chat().prompt([{"role": "user", "content": parts}]).text


def test_a_text_becomes_a_part_for_templates_that_take_parts_only(make_chat: MakeChat) -> None:
    only_parts = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    assert make_chat(only_parts).prompt(HI).text == "[Hi]"


def test_a_developer_message_becomes_a_system_message_if_the_template_lacks_the_role(make_chat: MakeChat) -> None:
    assert "<|im_start|>system\nX<" in make_chat().prompt([{"role": "developer", "content": "X"}, *HI]).text


def test_arguments_are_texts_for_templates_that_need_texts(make_chat: MakeChat) -> None:
    wants = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}"
    template = make_chat(f"{wants}{{% if m.content %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}")
    for arguments in (ARGUMENTS, json.loads(ARGUMENTS)):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        assert template.prompt([*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]).text == (
            "Hif" + ARGUMENTS
        )


def test_reasoning_gets_the_name_that_the_template_uses(make_chat: MakeChat) -> None:
    template = make_chat("{% for m in messages %}{{ m.thinking }}|{{ m.content }}{% endfor %}")
    made = template.prompt([*HI, {"role": "assistant", "content": "A", "reasoning_content": "Hm"}])
    assert made.text == "|HiHm|A"


@pytest.mark.parametrize("before", ["", "  "])
def test_a_last_message_can_be_continued(before: str, make_chat: MakeChat) -> None:
    answer = {"role": "assistant", "content": f"{before}Once upon "}
    made = make_chat().prompt([*HI, answer], continue_final_message=True)
    assert made.text.endswith(f"<|im_start|>assistant\n{before}Once upon ")
    trimming = make_chat(CHATML.replace("m.content }}", "m.content | trim }}"))
    assert trimming.prompt([*HI, answer], continue_final_message=True).text.endswith("assistant\nOnce upon")


def test_reasoning_opened_by_the_prompt_or_a_continued_message_is_reported(make_chat: MakeChat) -> None:
    thinks = make_chat(CHATML.replace("assistant\n{%", "assistant\n<think>\n{%") + "{# </think> #}")
    assert thinks.prompt(HI).opens_reasoning
    assert thinks.prompt(HI).reasoning_end == "</think>"
    assert not thinks.prompt(HI, add_generation_prompt=False).opens_reasoning
    for text, inside in (("<think>Hm", True), ("<think>Hm</think>So", False)):
        answer = {"role": "assistant", "content": text}
        assert thinks.prompt([*HI, answer], continue_final_message=True).opens_reasoning is inside
    assert not make_chat().prompt([{"role": "user", "content": "<think>"}]).opens_reasoning


def test_a_turn_ends_with_the_token_that_the_template_puts_there(make_chat: MakeChat) -> None:
    template = make_chat()
    [[*_, ending]] = template.tokenizer.encode(["<|im_end|>"], parse_special=True)
    made = template.prompt(HI)
    assert made.stop_token_ids == (ending,)
    assert made.stop == ()


def test_a_separate_template_for_tools_is_used_if_there_is_one(make_chat: MakeChat) -> None:
    tools = "{{ tools | tojson }}" + CHATML
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": tools}]
    template = make_chat(named)
    assert template.prompt(HI).text.startswith("<|im_start|>user")
    assert template.prompt(HI, tools=TOOLS).text.startswith('[{"type": "function"')


def test_variables_reach_the_template(make_chat: MakeChat) -> None:
    assert make_chat("{{ x | tojson }}{{ messages[0].content }}").prompt(HI, variables={"x": {"a": "é"}}).text == (
        '{"a": "é"}Hi'
    )


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception", "a b", "add_generation_prompt"])
def test_reserved_template_variables_cannot_be_set(name: str, make_chat: MakeChat) -> None:
    with pytest.raises(RequestError, match="cannot be set"):
        make_chat().prompt(HI, variables={name: "x"})


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "there are 0"),
        ([{"content": "x"}], "is not a role"),
        ([{"role": "<|im_end|>", "content": "x"}], "is not a role"),
        ([{"role": "user", "content": 5}], "neither a text nor a list"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "is not a function call"),
        ([{"role": "assistant", "tool_calls": "x"}], "is not a function call"),
        (["x"], "is not a JSON object"),
        ([{"role": "user", "content": "x", "more": {1, 2}}], "are not JSON"),
    ],
)
def test_an_invalid_conversation_is_refused(messages: Any, why: str, make_chat: MakeChat) -> None:
    with pytest.raises(RequestError, match=why):
        make_chat().prompt(messages)


def test_a_template_may_refuse_a_conversation_in_its_own_words(make_chat: MakeChat) -> None:
    template = make_chat("{% if messages | length > 2 %}{{ raise_exception('at\nmost two') }}{% endif %}" + CHATML)
    with pytest.raises(RequestError, match=r"the chat template refuses them: at\\nmost two") as found:
        template.prompt(HI * 3)
    assert "\n" not in str(found.value)


SPLITS = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}",
)
"""As QwQ's: what an earlier answer thought is cut off, and its content has to be a text for that."""


@pytest.mark.parametrize("content", ["", None])
def test_a_call_without_content_comes_before_its_result_where_a_template_reads_contents_of_earlier_answers(
    make_chat: MakeChat, content: str | None
) -> None:
    called = CALLED["called"]["messages"]
    turns = [turn if turn["role"] != "assistant" else {**turn, "content": content} for turn in called]
    assert "get_weather" in make_chat(SPLITS).prompt(turns, tools=TOOLS).text


def test_an_empty_content_is_not_taken_for_none(make_chat: MakeChat) -> None:
    tells = CHATML.replace("{{ m.content }}", "{{ m.content | tojson }}{{ m.tool_calls | tojson if m.tool_calls }}")
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    for content, said in (("", 'assistant\n""'), (None, "assistant\nnull")):
        turns = [*HI, {"role": "assistant", "content": content, "tool_calls": [call]}]
        assert said in make_chat(tells).prompt(turns, tools=TOOLS).text


def test_a_template_that_needs_tools_is_probed_with_tools(make_chat: MakeChat) -> None:
    template = make_chat("{% for tool in tools %}{{ tool | tojson }}{% endfor %}" + CHATML)
    made = template.prompt([{"role": "system", "content": "Be terse."}, *HI], tools=TOOLS)
    assert "<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\nHi<|im_end|>" in made.text
