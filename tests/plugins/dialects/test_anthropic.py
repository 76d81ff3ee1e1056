"""/v1/messages, held to the published client ``anthropic`` over real HTTP, and to scripted answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from dialect_parts import speaking
from infeng_demo import model_dir
from infeng_dialects.anthropic.parameters import CountTokensRequest
from infeng_dialects.anthropic.reading import asked_of, read
from infeng_serve.auth import Keys
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.reading import decode
from infeng_tokenizers.api import HfTokenizer
from protocol_parts import CALLS, SAID, body_of, context_of, data_of, refusal, scripted, streamed
from serve_parts import Running, slowed

from infeng_core.api import EngineConfig

QUESTION = [{"role": "user", "content": "Tom has 3 boxes. How many boxes has Tom?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "the weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [{"name": "add", "input_schema": {"type": "object"}}, {"name": "sub", "input_schema": {"type": "object"}}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(served: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)


@pytest.fixture
def context() -> Context:
    return context_of(HfTokenizer(model_dir(), EngineConfig()), context=1024)


# ------------------------------------------------------------------------------------------------------ the client ---


@pytest.mark.parametrize("model", ["demo", "bard"])
def test_an_answer_and_its_stream_equal_that_of_chat(client: anthropic.Anthropic, served: Running, model: str):
    fields = {"model": model, "messages": QUESTION, "max_tokens": 24, **GREEDY}
    chat = served.ask("/v1/chat/completions", fields).json
    made = client.messages.create(model=model, messages=QUESTION, max_tokens=24, extra_body=GREEDY)
    assert [block.type for block in made.content] == ["text"]
    text = made.content[0].text  # type: ignore[union-attr]
    assert text == chat["choices"][0]["message"]["content"]
    assert (made.model, made.role, made.type) == (model, "assistant", "message")
    usage = made.usage
    counted = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert (counted, usage.output_tokens) == (chat["usage"]["prompt_tokens"], chat["usage"]["completion_tokens"])
    with client.messages.stream(model=model, messages=QUESTION, max_tokens=24, extra_body=GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert "".join(block.text for block in final.content) == text  # type: ignore[union-attr]
    assert final.stop_reason == made.stop_reason
    assert final.usage.output_tokens == usage.output_tokens
    assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "content_block_start", "message_stop")


def test_the_asynchronous_client_streams_the_same_text(client: anthropic.Anthropic, served: Running):
    made = client.messages.create(model="demo", messages=QUESTION, max_tokens=8, extra_body=GREEDY)

    async def texts() -> str:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as other:
            call = other.messages.stream(model="demo", messages=QUESTION, max_tokens=8, extra_body=GREEDY)
            async with call as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(texts()) == made.content[0].text  # type: ignore[union-attr]


def test_a_tool_makes_its_round_trip(client: anthropic.Anthropic, served: Running):
    turns: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]
    given: Any = {"model": "demo", "max_tokens": 120, "tools": [WEATHER], "tool_choice": {"type": "any"},
                  "extra_body": GREEDY}  # fmt: skip
    made = client.messages.create(messages=turns, **given)
    assert made.stop_reason == "tool_use"
    call = made.content[-1]
    assert call.type == "tool_use"
    assert call.name == "weather"
    assert call.input["city"] in ("Paris", "Rome")
    with client.messages.stream(messages=turns, **given) as stream:
        streamed_call = stream.get_final_message().content[-1]
    assert streamed_call.type == "tool_use"
    assert (streamed_call.name, streamed_call.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain"}]}
    turns += [{"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    last = client.messages.create(model="demo", max_tokens=8, messages=turns, tools=[WEATHER])
    assert last.usage.output_tokens
    named = client.messages.create(
        model="demo",
        max_tokens=120,
        messages=turns[:1],
        tools=[WEATHER],
        tool_choice={"type": "tool", "name": "weather"},
    )
    assert named.content[-1].type == "tool_use"


def test_tokens_are_counted_as_the_answer_counts_them(client: anthropic.Anthropic):
    given: Any = {"model": "demo", "system": "Be brief.", "messages": QUESTION, "tools": [WEATHER]}
    counted = client.messages.count_tokens(**given)
    usage = client.messages.create(max_tokens=1, **given).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stop_sequence_is_named_and_the_last_turn_of_an_assistant_is_continued(client: anthropic.Anthropic):
    turns: list[Any] = [*QUESTION, {"role": "assistant", "content": "Tom has 3"}]
    made = client.messages.create(model="demo", messages=turns, max_tokens=16, extra_body=GREEDY)
    text = made.content[0].text  # type: ignore[union-attr]
    assert not text.startswith("Tom")
    word = text.split()[1]
    cut = client.messages.create(
        model="demo", messages=turns, max_tokens=16, stop_sequences=["@@", word], extra_body=GREEDY
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert cut.content[0].text == text[: text.index(word)]  # type: ignore[union-attr]


def test_a_schema_holds_the_answer(client: anthropic.Anthropic):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}, **GREEDY}
    made = client.messages.create(model="demo", messages=QUESTION, max_tokens=40, extra_body=form)
    assert json.loads(made.content[0].text)["a"] in (1, 2)  # type: ignore[union-attr]


def test_models_are_listed(client: anthropic.Anthropic):
    assert [one.id for one in client.models.list()] == ["demo", "bard", "coder"]


def test_what_is_cached_is_told_apart(client: anthropic.Anthropic):
    turns: Any = [{"role": "user", "content": "A prompt of its own, and long enough for some blocks. " * 8}]
    first = client.messages.create(model="demo", messages=turns, max_tokens=1).usage
    with client.messages.stream(model="demo", messages=turns, max_tokens=1) as stream:
        [second] = [event.usage for event in stream if event.type == "message_delta"]
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens
    assert (second.input_tokens or 0) + second.cache_read_input_tokens == first.input_tokens


# ---------------------------------------------------------------------------------------------------------- errors ---


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"model": "nobody"}, anthropic.NotFoundError, "not_found_error: The model 'nobody'"),
        ({"messages": []}, anthropic.BadRequestError, "messages: there is none"),
        ({"extra_body": {"temprature": 1}}, anthropic.BadRequestError, "did you mean `temperature`"),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "Hi " * 3000}]}, anthropic.BadRequestError, "1024"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
         anthropic.BadRequestError, "messages[0].content[0].type: 'image'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError,
         "tools[0].type: 'web_search_20250305'"),
        ({"extra_body": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}},
         anthropic.BadRequestError, "context_management.edits[0]"),
    ],
)  # fmt: skip
def test_errors_have_the_form_that_the_client_knows(client: anthropic.Anthropic, given: Any, kind: Any, said: str):
    with pytest.raises(kind) as raised:
        client.messages.create(**{"model": "demo", "messages": QUESTION, "max_tokens": 4, **given})
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert said in f"{body['error']['type']}: {body['error']['message']}"


def test_a_key_is_taken_from_x_api_key_or_authorization():
    with speaking(names=["demo"], keys=Keys(["right"])) as served:
        for given in ({"api_key": "right"}, {"auth_token": "right", "api_key": None}):
            client = anthropic.Anthropic(base_url=served.url, max_retries=0, **given)  # type: ignore[arg-type]
            assert client.messages.create(model="demo", messages=QUESTION, max_tokens=1).role == "assistant"
        client = anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as raised:
            client.messages.create(model="demo", messages=QUESTION, max_tokens=1)
        assert raised.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        both = {"x_api_key": "right", "authorization": "Bearer wrong"}
        assert served.ask("/v1/messages", {}, **both).status == 401


def test_an_error_in_mid_stream_is_an_event(served: Running):
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 500, "stream": True}
    with speaking(names=["demo"], drain_timeout=0.0) as found, slowed(found.engine, 0.05):
        import httpx

        with httpx.stream("POST", f"{found.url}/v1/messages", json=body, timeout=30) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: message_start"
            found.server.stop()
            rest = list(lines)
    assert rest[-3] == "event: error"
    told = json.loads(rest[-2].removeprefix("data: "))
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")


@pytest.mark.slow
def test_a_silent_stream_gets_pings_that_the_client_takes():
    with speaking(names=["demo"], stream_keep_alive=0.02) as served, slowed(served.engine, 0.1):
        client = anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)
        with client.messages.stream(model="demo", messages=QUESTION, max_tokens=4) as stream:
            assert stream.get_final_message().usage.output_tokens
        body = {"model": "demo", "messages": QUESTION, "max_tokens": 4, "stream": True}
        assert b"event: ping\n" in served.ask("/v1/messages", body).data


def said(frames: list[bytes]) -> str:
    """Return the text in frames, however it is divided among them."""
    return "".join(data_of(one)["delta"]["text"] for one in frames if b"text_delta" in one)


def test_a_stream_of_a_journal_is_resumed_after_the_event_that_the_client_has(tmp_path: Any):
    with speaking(names=["demo"], journal=str(tmp_path)) as served:
        body = {"model": "demo", "messages": QUESTION, "max_tokens": 12, "stream": True, **GREEDY}
        whole = served.ask("/v1/messages", body)
        frames = whole.data.split(b"\n\n")
        last = frames[2].split(b"\n")[0].removeprefix(b"id: ").decode()
        rest = served.ask(f"/v1/streams/{whole.headers['x-request-id']}", last_event_id=last)
        resumed = rest.data.split(b"\n\n")
        assert said(resumed) == said(frames[3:]) != ""
        assert said(frames[:3]) != ""
        [was], [now] = ([data_of(one) for one in some if b"message_delta" in one] for some in (frames, resumed))
        assert was["delta"] == now["delta"]


# ------------------------------------------------------------------------------------------------ scripted answers ---


def both(context: Context, text: str, finish_reason: str = "stop", **given: Any) -> tuple[Any, list[Any]]:
    """Return the whole answer whose model writes ``text``, and the data of its stream's events."""
    known = {"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}], **given}
    answer, stream = (read(body_of(**known, stream=streams), context) for streams in (False, True))
    events = scripted(context.tokenizer, answer.requests[0].prompt, text, finish_reason)  # type: ignore[arg-type]
    [completion] = [event.completion for event in events if event.completion is not None]
    return json.loads(answer.body([completion])), [data_of(frame) for frame in streamed(stream, [events], seed=3)]


def assembled(events: list[Any]) -> list[Any]:
    """Return the blocks of a stream's events, as a client puts them together."""
    blocks: list[Any] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial": ""})
            assert event["index"] == len(blocks) - 1
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            assert event["index"] == len(blocks) - 1
            for name in ("text", "thinking", "signature"):
                if name in delta:
                    block[name] += delta[name]
            block["partial"] += delta.get("partial_json", "")
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    return blocks


def test_reasoning_text_and_calls_are_blocks_the_same_in_a_stream(context: Context):
    whole, events = both(context, SAID + CALLS, tools=TOOLS)
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][0]["thinking"].startswith("Well,")
    assert whole["content"][2]["input"] == {"a": 1, "b": "x\nü"}
    assert whole["stop_reason"] == "tool_use"
    assert assembled(events) == whole["content"]
    ended = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert ended == [0, 1, 2, 3]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == whole["usage"]


def test_thinking_is_empty_where_it_is_omitted_and_a_cut_call_has_no_input(context: Context):
    whole, events = both(context, SAID, thinking={"type": "adaptive", "display": "omitted"})
    assert whole["content"][0]["thinking"] == ""
    assert assembled(events) == whole["content"]
    cut, _ = both(context, '<call add>{"a": ', "length", tools=TOOLS)
    assert (cut["content"][-1]["input"], cut["stop_reason"]) == ({}, "max_tokens")


def test_turns_become_messages_of_chat(context: Context):
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "document", "source": {"type": "text", "data": "b"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                          {"type": "redacted_thinking", "data": "x"},
                                          {"type": "text", "text": "c"},
                                          {"type": "tool_use", "id": "1", "name": "add", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True},
                                     {"type": "text", "text": "d"}]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "s1"}, {"type": "text", "text": "s2"}]
    given = decode(
        body_of(model="demo", messages=turns, system=system, thinking={"type": "disabled"}), CountTokensRequest
    )
    asked = asked_of(given, context)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x":1}'}}
    assert asked.messages == [
        {"role": "system", "content": "s1\ns2"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "reasoning": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
        {"role": "user", "content": "d"},
    ]
    assert asked.enable_thinking is False
    assert not asked.continue_final_message


@pytest.mark.parametrize(
    ("turn", "path"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "messages[0].content[0].tool_use_id"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "a", "input": 5}]},
         "messages[0].content[0].input"),
        ({"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]},
         "messages[0].content[0].type"),
    ],
)  # fmt: skip
def test_a_wrong_turn_is_named(context: Context, turn: Any, path: str):
    error: ApiError = refusal(read, context, model="demo", max_tokens=4, messages=[turn])
    assert error.param == path
