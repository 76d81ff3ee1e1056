"""What a stream gives in pieces is what an unstreamed body gives at once, in the shapes of OpenAI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.answer import Answer, Context
from infeng_serve.protocol.errors import ApiError
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from protocol_parts import (
    CALLS,
    SAID,
    TOOLS,
    body_of,
    chunks,
    context_of,
    data_of,
    scripted,
    split,
    streamed,
)
from pydantic import TypeAdapter

from infeng_core.api import Completion, Engine, Event, SamplingParams

MESSAGES = [{"role": "user", "content": "Hi"}]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


def run(engine: Engine, answer: Answer) -> list[list[Event]]:
    """Return what the engine gives for each choice."""
    streams = [engine.submit(request) for request in answer.requests]
    return [list(stream) for stream in streams]


def completed(events: Sequence[Sequence[Event]]) -> list[Completion]:
    found = [one[-1].completion for one in events]
    return [one for one in found if one is not None]


def visible(completion: Completion) -> int:
    """Return how many of an answer's tokens stand in its text."""
    return len(completion.token_ids) - (completion.finish_reason == "stop")


def both(read: Any, context: Context, make: Any, **given: Any) -> tuple[Answer, Answer, list[list[Event]]]:
    """Return the answers to a body, streamed and not, and the events of the same requests."""
    stream, whole = read(body_of(stream=True, **given), context), read(body_of(**given), context)
    assert (stream.streams, whole.streams) == (True, False)
    assert stream.requests == whole.requests
    return stream, whole, make(stream)


def joined_completion(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the choices that the chunks of a completion add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in found:
        OpenAICompletion.model_validate(
            {**chunk, "choices": [{**one, "finish_reason": "stop"} for one in chunk["choices"]]}
        )
        for piece in chunk["choices"]:
            choice = choices.setdefault(piece["index"], {"text": "", "logprobs": None, "finish_reason": None})
            assert choice["finish_reason"] is None
            choice["text"] += piece["text"]
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                known = choice["logprobs"] or {name: [] for name in piece["logprobs"]}
                choice["logprobs"] = {name: known[name] + piece["logprobs"][name] for name in known}
    return [choices[index] for index in sorted(choices)]


def joined_chat(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the choices that the chunks of a chat add up to."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk)
        for piece in chunk["choices"]:
            delta = piece["delta"]
            if piece["index"] not in choices:
                assert delta == {"role": "assistant", "content": ""}
            choice = choices.setdefault(
                piece["index"],
                {"content": "", "reasoning": "", "calls": [], "logprobs": None, "finish_reason": None},
            )
            assert choice["finish_reason"] is None
            choice["content"] += delta.get("content", "")
            choice["reasoning"] += delta.get("reasoning", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(choice["calls"])
                    assert call["type"] == "function"
                    choice["calls"].append({**call, "function": {"arguments": "", **call["function"]}})
                else:
                    assert call.keys() == {"index", "function"}
                    choice["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                choice["logprobs"] = (choice["logprobs"] or []) + piece["logprobs"]["content"]
    return [choices[index] for index in sorted(choices)]


def of_chat_body(body: Any) -> list[dict[str, Any]]:
    """Return the same of an unstreamed body."""
    ChatCompletion.model_validate(body)
    return [
        {
            "content": choice["message"]["content"] or "",
            "reasoning": choice["message"].get("reasoning", ""),
            "calls": [{"index": i, **call} for i, call in enumerate(choice["message"].get("tool_calls", []))],
            "logprobs": choice["logprobs"] and choice["logprobs"]["content"],
            "finish_reason": choice["finish_reason"],
        }
        for choice in body["choices"]
    ]


def joined_response(frames: Sequence[bytes]) -> dict[str, Any]:
    """Return the output that the events of a response add up to; checks their order."""
    events = [data_of(frame) for frame in frames]
    adapter = TypeAdapter[Any](ResponseStreamEvent)
    output: list[Any] = []
    for number, (frame, event) in enumerate(zip(frames, events, strict=True)):
        adapter.validate_python(event)
        assert frame.startswith(b"event: " + event["type"].encode() + b"\ndata: ")
        assert event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
        elif kind == "content_part.added":
            output[-1]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = output[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            if "logprobs" in event:
                part["logprobs"] += event["logprobs"]
        elif kind == "function_call_arguments.delta":
            output[event["output_index"]]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert output[-1]["content"][0]["text"] == event["text"]
        elif kind == "function_call_arguments.done":
            assert output[-1]["arguments"] == event["arguments"]
        elif kind == "content_part.done":
            assert output[-1]["content"][0] == event["part"]
        elif kind == "output_item.done":
            output[-1]["status"] = event["item"]["status"]
            assert output[-1] == event["item"]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"] == output
    result: dict[str, Any] = last
    return result


# ------------------------------------------------------------------------------------------------- on a real engine ---


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_a_streamed_completion_is_the_unstreamed_one(engine, context, logprobs):
    given = {"prompt": ["Once upon a time", "The lion"], "n": 3, "seed": 4, "max_tokens": 12, "stop": [" a", "\n"],
             "logprobs": logprobs, "stream_options": {"include_usage": True}}  # fmt: skip
    stream, whole, events = both(completions.read, context, lambda answer: run(engine, answer), **given)
    body = json.loads(whole.body(completed(events)))
    OpenAICompletion.model_validate(body)
    found = chunks(streamed(stream, events))
    expected = [{name: choice[name] for name in ("text", "logprobs", "finish_reason")} for choice in body["choices"]]
    assert joined_completion(found) == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert all(chunk["usage"] is None for chunk in found[:-1])
    assert found[-1]["choices"] == []
    assert found[-1]["usage"] == body["usage"]
    assert body["usage"]["completion_tokens"] == sum(len(one.token_ids) for one in completed(events))
    assert body["usage"]["prompt_tokens"] == sum(len(one.prompt) for one in stream.requests[::3])
    if logprobs is not None:
        for choice, one in zip(body["choices"], completed(events), strict=True):
            known = choice["logprobs"]
            assert len(known["tokens"]) == len(one.token_ids) == len(known["text_offset"])
            assert known["token_logprobs"] == [each.logprob for each in one.logprobs]
            assert all(len(top) in (logprobs, logprobs + 1) for top in known["top_logprobs"])


@pytest.mark.parametrize(
    "extra", [{}, {"logprobs": True, "top_logprobs": 2}, {"chat_template_kwargs": {"enable_thinking": True}}]
)
def test_a_streamed_chat_is_the_unstreamed_one(engine, context, extra):
    given = {"messages": MESSAGES, "n": 3, "seed": 4, "max_tokens": 12, "stream_options": {"include_usage": True}}
    stream, whole, events = both(chat.read, context, lambda answer: run(engine, answer), **given, **extra)
    body = json.loads(whole.body(completed(events)))
    found = chunks(streamed(stream, events))
    assert joined_chat(found) == of_chat_body(body)
    assert found[-1]["usage"] == body["usage"]
    assert body["usage"]["prompt_tokens"] == len(stream.requests[0].prompt)
    thinks = "chat_template_kwargs" in extra
    reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning == sum(map(visible, completed(events))) if thinks else reasoning == 0
    if "logprobs" in extra:
        for choice, one in zip(body["choices"], completed(events), strict=True):
            tokens = choice["logprobs"]["content"]
            assert [token["logprob"] for token in tokens] == [each.logprob for each in one.logprobs]
            assert all(len(token["top_logprobs"]) == 2 for token in tokens)
            assert all(bytes(token["bytes"]).decode(errors="replace") == token["token"] for token in tokens)


def test_a_streamed_response_is_the_unstreamed_one(engine, context):
    given = {"input": "Hi", "seed": 4, "max_output_tokens": 12, "top_logprobs": 2}
    stream, whole, events = both(responses.read, context, lambda answer: run(engine, answer), **given)
    body = json.loads(whole.body(completed(events)))
    Response.model_validate(body)
    assert joined_response(streamed(stream, events)) == body
    [item] = body["output"]
    assert item["content"][0]["text"] == completed(events)[0].text
    assert len(item["content"][0]["logprobs"]) == 12
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["usage"]["output_tokens"] == 12


def test_echo_returns_the_prompt_with_its_log_probabilities(engine, context, tokenizer):
    given = {"prompt": "Once upon a time", "echo": True, "logprobs": 2, "max_tokens": 4, "temperature": 0}
    answer = completions.read(body_of(**given), context)
    [events] = run(engine, answer)
    [completion] = completed([events])
    [choice] = json.loads(answer.body([completion]))["choices"]
    known = choice["logprobs"]
    ids = answer.requests[0].prompt
    assert choice["text"] == "Once upon a time" + completion.text
    assert len(known["tokens"]) == len(ids) + 4
    assert (known["token_logprobs"][0], known["top_logprobs"][0]) == (None, None)
    before = [one.logprob for one in completion.prompt_logprobs if one is not None]
    assert known["token_logprobs"][1:] == before + [one.logprob for one in completion.logprobs]
    nothing = completions.read(body_of(**{**given, "max_tokens": 0}), context)
    assert nothing.requests[0].params.max_tokens == 1
    body = json.loads(nothing.body([completion]))
    assert body["choices"][0]["text"] == "Once upon a time"
    assert body["choices"][0]["logprobs"]["token_logprobs"] == known["token_logprobs"][: len(ids)]
    assert body["usage"]["completion_tokens"] == 0
    stream = completions.read(body_of(stream=True, prompt=list(ids), echo=True, max_tokens=4, temperature=0), context)
    assert joined_completion(chunks(streamed(stream, [events])))[0]["text"] == tokenizer.decode(ids) + completion.text


def test_prompt_log_probabilities_are_keyed_by_token(engine, context):
    for read, given in ((completions.read, {"prompt": "The lion"}), (chat.read, {"messages": MESSAGES})):
        answer = read(body_of(**given, prompt_logprobs=2, max_tokens=1), context)
        [completion] = completed(run(engine, answer))
        body = json.loads(answer.body([completion]))
        known = body.get("prompt_logprobs") or body["choices"][0]["prompt_logprobs"]
        assert known[0] is None
        assert len(known) == len(answer.requests[0].prompt)
        token = str(answer.requests[0].prompt[1])
        assert known[1][token]["logprob"] == completion.prompt_logprobs[1].logprob
        ranks = {id_: one["rank"] for id_, one in known[1].items()}
        assert [ranks[str(id_)] for id_, _ in completion.prompt_logprobs[1].top] == [1, 2]
        assert ranks[token] == completion.prompt_logprobs[1].rank > 2


# ---------------------------------------------------------------------------------------- on what a model might say ---


def given_events(answer: Answer, text: str, reason: str = "stop", top: int | None = None) -> list[list[Event]]:
    context: Any = answer
    tokenizer = context.context.tokenizer
    return [scripted(tokenizer, request.prompt, text, reason, top) for request in answer.requests]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("top", [None, 2])
def test_calls_and_reasoning_come_in_pieces_that_add_up(context, seed, top):
    given = {"messages": MESSAGES, "tools": TOOLS, "n": 2, "logprobs": top is not None, "top_logprobs": top,
             "stream_options": {"include_usage": True}}  # fmt: skip
    make = lambda answer: given_events(answer, SAID + CALLS, top=top)  # noqa: E731
    stream, whole, events = both(chat.read, context, make, **given)
    body = json.loads(whole.body(completed(events)))
    found = chunks(streamed(stream, events, seed))
    assert joined_chat(found) == of_chat_body(body)
    assert found[-1]["usage"] == body["usage"]
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Well,\n it is", "Hello <b>w\u00f6rld</b> \U0001f642! ")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add", "sub"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": "x\n\u00fc"}
    assert {choice["finish_reason"] for choice in body["choices"]} == {"tool_calls"}
    assert 0 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20


@pytest.mark.parametrize("seed", range(3))
def test_a_response_has_items_in_the_order_in_which_the_model_writes_them(context, seed):
    make = lambda answer: given_events(answer, SAID + CALLS + "Done.")  # noqa: E731
    stream, whole, events = both(responses.read, context, make, input="Hi", tools=FLAT)
    body = json.loads(whole.body(completed(events)))
    Response.model_validate(body)
    assert joined_response(streamed(stream, events, seed)) == body
    kinds = [item["type"] for item in body["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "message"]
    assert {item["status"] for item in body["output"]} == {"completed"}
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_an_answer_has_one_call_at_most_without_parallel_calls(context):
    for read, given in (
        (chat.read, {"messages": MESSAGES, "tools": TOOLS}),
        (responses.read, {"input": "Hi", "tools": FLAT}),
    ):
        answer = read(body_of(**given, parallel_tool_calls=False), context)
        found = json.dumps(json.loads(answer.body(completed(given_events(answer, CALLS)))))
        assert '"name": "add"' in found
        assert '"call_2"' not in found


def test_an_answer_with_calls_only_has_null_content(context):
    answer = chat.read(body_of(messages=MESSAGES, tools=TOOLS), context)
    [choice] = json.loads(answer.body(completed(given_events(answer, CALLS))))["choices"]
    assert choice["message"]["content"] is None
    stays = chat.read(body_of(messages=MESSAGES), context)
    [choice] = json.loads(stays.body(completed(given_events(stays, CALLS))))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALLS, "stop")


@pytest.mark.parametrize("reason", ["stop", "length", "timeout", "cancelled"])
def test_finish_reasons_are_in_openais_terms(context, reason):
    expected = "stop" if reason == "stop" else "length"
    cut = reason if reason in ("timeout", "cancelled") else None
    for read, given in ((completions.read, {"prompt": "a"}), (chat.read, {"messages": MESSAGES})):
        stream, whole, events = both(read, context, lambda answer: given_events(answer, "Hello", reason), **given)
        [choice] = json.loads(whole.body(completed(events)))["choices"]
        assert (choice["finish_reason"], choice.get("stop_reason")) == (expected, cut)
        ends = [chunk["choices"][0] for chunk in chunks(streamed(stream, events))]
        assert [(end["finish_reason"], end.get("stop_reason")) for end in ends if end["finish_reason"]] == [
            (expected, cut)
        ]
    answer = responses.read(body_of(input="Hi"), context)
    body = json.loads(answer.body(completed(given_events(answer, "Hello", reason))))
    status = {"stop": "completed", "cancelled": "cancelled"}.get(reason, "incomplete")
    assert body["status"] == status


def test_usage_may_come_with_every_chunk(context):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for read, given in ((completions.read, {"prompt": "a"}), (chat.read, {"messages": MESSAGES})):
        answer = read(body_of(stream=True, stream_options=options, **given), context)
        events = given_events(answer, "Hello there, you")
        found = chunks(streamed(answer, events))
        counts = [chunk["usage"]["completion_tokens"] for chunk in found]
        assert counts == sorted(counts)
        assert counts[-1] == len(completed(events)[0].token_ids)
        plain = read(body_of(stream=True, **given), context)
        assert all("usage" not in chunk for chunk in chunks(streamed(plain, events)))


def test_cached_tokens_are_reported(context):
    answer = completions.read(body_of(prompt=["a b c", "d e f"], n=2), context)
    usage = json.loads(answer.body(completed(given_events(answer, "Hello"))))["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}  # of the first choice of each prompt
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 4
    assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_that_breaks_ends_with_the_error(context):
    error = ApiError(500, "the server failed", type="server_error", code="internal_error")
    for read, given in ((completions.read, {"prompt": "a"}), (chat.read, {"messages": MESSAGES})):
        answer = read(body_of(stream=True, **given), context)
        answer.opening()
        first, last = split(answer.failed(error))
        assert data_of(first) == json.loads(error.body())
        assert last == b"data: [DONE]\n\n"
    answer = responses.read(body_of(input="Hi", stream=True), context)
    before = split(answer.opening() + answer.frames(0, given_events(answer, "Hello you")[0][:2]))
    [frame] = split(answer.failed(error))
    event = data_of(frame)
    assert (event["type"], event["sequence_number"]) == ("response.failed", len(before))
    assert event["response"]["error"] == {"code": "server_error", "message": "the server failed"}
    assert event["response"]["output"][0]["content"][0]["text"]


def test_answers_name_the_model_and_the_call(context, tokenizer):
    for read, given, id_ in (
        (completions.read, {"prompt": "a"}, "cmpl-abc"),
        (chat.read, {"messages": MESSAGES}, "chatcmpl-abc"),
        (responses.read, {"input": "Hi"}, "resp_abc"),
    ):
        for model, expected in ((None, "demo"), ("bard", "bard")):
            answer = read(body_of(model=model, **given), context)
            body = json.loads(answer.body(completed(given_events(answer, "Hello"))))
            assert (body["id"], body["model"]) == (id_, expected)
            assert body.get("created", body.get("created_at")) == context.created
    tricky = context_of(tokenizer, id='a"/\u00e9', model='m"\n')
    answer = chat.read(body_of(messages=MESSAGES, stream=True), tricky)
    assert chunks(streamed(answer, given_events(answer, "Hello")))[0]["id"] == 'chatcmpl-a"/\u00e9'


def test_a_response_repeats_the_parameters_of_its_request(context):
    given = {"input": "Hi", "instructions": "Be brief.", "tools": FLAT, "temperature": 0.5, "metadata": {"a": "b"},
             "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 5, "user": "me",
             "reasoning": {"effort": "low"}, "parallel_tool_calls": False}  # fmt: skip
    answer = responses.read(body_of(**given), context)
    body = json.loads(answer.body(completed(given_events(answer, CALLS))))
    Response.model_validate(body)
    assert body["tools"] == [{"parameters": None, "strict": None, **tool} for tool in FLAT]
    for name in (
        "instructions",
        "temperature",
        "metadata",
        "max_output_tokens",
        "user",
        "parallel_tool_calls",
    ):
        assert body[name] == given[name], name
    assert body["store"] is False
    assert body["tool_choice"]["name"] == "add"


def test_the_output_of_a_response_is_valid_as_the_next_input(context):
    answer = responses.read(body_of(input="Hi", tools=FLAT), context)
    output = json.loads(answer.body(completed(given_events(answer, SAID + CALLS))))["output"]
    results = [{"type": "function_call_output", "call_id": f"call_{i}", "output": str(i)} for i in (1, 2)]
    responses.read(body_of(input=[{"role": "user", "content": "Hi"}, *output, *results], tools=FLAT), context)
    _, said, *told = context.template.calls.pop()["messages"]
    assert (said["content"], said["reasoning"]) == ("Hello <b>w\u00f6rld</b> \U0001f642! ", "Well,\n it is")
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["add", "sub"]
    assert [message["tool_call_id"] for message in told] == ["call_1", "call_2"]


@pytest.mark.skipif("skip_special_tokens" not in SamplingParams.__dataclass_fields__, reason="texts never have any")
def test_a_parser_gets_special_tokens_and_content_has_none(engine, context):
    special = {"allowed_token_ids": [engine.tokenizer.bos_id], "max_tokens": 2}
    for read, given, expected in (
        (completions.read, {"prompt": "a"}, ""),
        (completions.read, {"prompt": "a", "skip_special_tokens": False}, "<s><s>"),
        (chat.read, {"messages": MESSAGES}, "<s><s>"),
    ):
        answer = read(body_of(**given, **special), context)
        assert completed(run(engine, answer))[0].text == expected


def test_tokens_of_a_slow_reader_are_merged_into_one_frame(context):
    for read, given in (
        (completions.read, {"prompt": "a"}),
        (chat.read, {"messages": MESSAGES}),
        (responses.read, {"input": "a"}),
    ):
        answer = read(body_of(stream=True, **given), context)
        [events] = given_events(answer, "Once upon a time, there was a lion")
        answer.opening()
        answer.frames(0, events[:2])
        assert len(split(answer.frames(0, events[2:-1]))) == 1
        assert answer.frames(0, []) == b""


def test_log_probabilities_use_texts_if_the_tokenizer_lacks_bytes(tokenizer):
    class Plain:
        """A tokenizer of a plugin."""

        def __getattr__(self, name: str) -> Any:
            if name == "token_bytes":
                raise AttributeError
            return getattr(tokenizer, name)

    context = context_of(Plain())  # type: ignore[arg-type]
    answer = chat.read(body_of(messages=MESSAGES, logprobs=True), context)
    [choice] = json.loads(answer.body(completed(given_events(answer, "Hello", top=0))))["choices"]
    token = choice["logprobs"]["content"][0]
    assert bytes(token["bytes"]).decode() == token["token"]


@pytest.mark.parametrize(
    ("asked", "pattern"),
    [
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}}}, "[12]"),
    ],
)
def test_constraints_become_arguments_of_the_grammar_processor(engine, context, asked, pattern):
    for read, given in ((completions.read, {"prompt": "a"}), (chat.read, {"messages": MESSAGES})):
        answer = read(body_of(**given, **asked, seed=1), context)
        [completion] = completed(run(engine, answer))
        assert re.fullmatch(pattern, completion.text)
        assert completion.finish_reason == "stop"


@pytest.mark.parametrize(("read", "given"), [(chat.read, {"messages": MESSAGES, "tools": TOOLS}),
                                             (responses.read, {"input": "a", "tools": FLAT})])  # fmt: skip
def test_a_required_call_cut_off_in_its_name_is_not_content(context, read, given):
    for choice, said in (("required", False), ("auto", True)):
        make = lambda answer: given_events(answer, "<call ad", reason="length")  # noqa: E731
        stream, whole, events = both(read, context, make, **given, tool_choice=choice)
        body = whole.body(completed(events)).decode()
        assert ("<call ad" in body, "<call ad" in b"".join(streamed(stream, events, 1)).decode()) == (said, said)
        assert '"length"' in body or '"incomplete"' in body
        assert '"tool_calls":[' not in body and '"function_call"' not in body
