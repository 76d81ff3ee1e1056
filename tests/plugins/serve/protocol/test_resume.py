"""A stream that broke goes on where its client stands, wherever that is and whatever steps bring the second time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infeng_serve.protocol import chat, completions, responses
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError
from protocol_parts import CALLS, SAID, TOOLS, body_of, data_of, id_of, scripted, split, streamed

MESSAGES = [{"role": "user", "content": "Hi"}]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
USAGE = {"stream_options": {"include_usage": True}}
STREAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (completions.read, {"prompt": ["a", "b"], "n": 2, **USAGE}),
    "echo": (completions.read, {"prompt": "a", "echo": True, **USAGE}),
    "logprobs": (completions.read, {"prompt": "a", "logprobs": 1, "n": 2}),
    "chat": (chat.read, {"messages": MESSAGES, "tools": TOOLS, "n": 3, **USAGE}),
    "chat-logprobs": (chat.read, {"messages": MESSAGES, "logprobs": True}),
    "responses": (responses.read, {"input": "Hi", "tools": FLAT}),
}


def numbered(route: str, context: Context) -> Any:
    read, body = STREAMS[route]
    answer = read(body_of(stream=True, **body), context)
    answer.numbered = True
    return answer


def events_of(answer: Any, context: Context) -> list[Any]:
    text = SAID + CALLS
    top = 1 if answer.requests[0].params.logprobs is not None else None
    return [scripted(context.tokenizer, request.prompt, text, top=top) for request in answer.requests]


def said(frames: list[bytes]) -> dict[Any, Any]:
    """Return what frames say of each choice or item, text by text, and the order of the others."""
    found: dict[Any, Any] = {"others": []}

    def add(key: Any, text: str) -> None:
        found[key] = found.get(key, "") + text

    for frame in frames:
        if frame == b"data: [DONE]\n\n":
            found["others"].append("done")
            continue
        data = data_of(frame)
        if "delta" in data:
            add((data["item_id"], data["type"]), data["delta"])
        elif "choices" not in data:
            found["others"].append({**data, "sequence_number": 0})
        elif not data["choices"]:
            found["others"].append(data["usage"])
        for choice in data.get("choices", []):
            delta = choice.get("delta", {"content": choice.get("text", "")})
            for name in ("content", "reasoning"):
                add((choice["index"], name), delta.get(name) or "")
            for call in delta.get("tool_calls", []):
                add((choice["index"], call["index"]), call["function"]["arguments"])
                add((choice["index"], call["index"], "id"), call.get("id") or "")
            if choice["logprobs"]:
                known = choice["logprobs"].get("tokens") or [token["token"] for token in choice["logprobs"]["content"]]
                add((choice["index"], "tokens"), "|".join([*known, ""]))
            if choice["finish_reason"]:
                add((choice["index"], "end"), choice["finish_reason"])
    return found


@pytest.mark.parametrize("route", STREAMS)
def test_ids_name_the_call_and_the_tokens_given(context, route):
    answer = numbered(route, context)
    events = events_of(answer, context)
    frames = streamed(answer, events)
    ids = [found for frame in frames if (found := id_of(frame)) is not None]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("own/") for one in ids)
    ends = ".".join(str(len(one) + 1) for one in events)
    assert any(one == f"own/{ends}" or one.startswith(f"own/{ends}/") for one in ids)
    zeros = ".".join("0" for _ in events)
    assert id_of(frames[0]) is None or ids[0].startswith(f"own/{zeros}") or route in ("completions", "logprobs")
    plain = STREAMS[route][0](body_of(stream=True, **STREAMS[route][1]), context)
    assert all(id_of(frame) is None for frame in streamed(plain, events))


@pytest.mark.parametrize("route", STREAMS)
def test_a_resumed_stream_sends_exactly_the_missing_frames(context, route):
    events = events_of(numbered(route, context), context)

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**16), st.integers(0, 2**16), st.floats(0, 1, exclude_max=True))
    def check(first: int, second: int, place: float) -> None:
        frames = streamed(numbered(route, context), events, first)
        known = [index for index, frame in enumerate(frames) if id_of(frame) is not None]
        last = known[int(place * len(known))]
        answer = numbered(route, context)
        last_id = id_of(frames[last])
        assert last_id is not None
        answer.resume(last_id)
        rest = split(answer.opening())
        assert not rest
        rest = streamed(answer, events, second)
        assert said([*frames[: last + 1], *rest]) == said(frames)
        if route == "responses":
            numbers = [data_of(frame)["sequence_number"] for frame in [*frames[: last + 1], *rest]]
            assert numbers == list(range(len(numbers)))
        again = [id_of(frame) for frame in rest if id_of(frame) is not None]
        assert len(set(again)) == len(again)

    check()


def test_a_stream_may_be_resumed_again_and_again(context):
    events = events_of(numbered("chat", context), context)
    whole = streamed(numbered("chat", context), events, 1)
    chance = random.Random(3)
    have: list[bytes] = []
    last_id = None
    for attempt in range(40):
        answer = numbered("chat", context)
        if last_id is not None:
            answer.resume(last_id)
        frames = streamed(answer, events, attempt)
        some = frames[: chance.randint(1, 6)]
        while some and id_of(some[-1]) is None and some[-1] != b"data: [DONE]\n\n":
            some = frames[: len(some) + 1]
        have += some
        if have[-1] == b"data: [DONE]\n\n":
            break
        last_id = id_of(have[-1])
    assert said(have) == said(whole)


@pytest.mark.parametrize(
    "last_id",
    ["", "abc", "own/", "abd/1.1.1", "own/1.1", "own/1.1.x", "own/1.1.1/x", "own/1.1.1/1/1/1", "own/1-2.1.1",
     "own/" + "9" * 400, "own/1.1.1\n"],
)  # fmt: skip
def test_an_id_of_another_call_is_refused(context, last_id):
    answer = numbered("chat", context)
    with pytest.raises(ApiError) as caught:
        answer.resume(last_id)
    assert (caught.value.status, caught.value.param) == (400, "Last-Event-ID")
