"""What a request may hold is counted before anything is made of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import attacks
import msgspec
import numpy as np
import pytest
from infeng_serve.protocol import bounds, chat, completions, counting, response_input, responses
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.errors import ApiError
from infeng_serve.protocol.reading import decode

PIECES = (7, 64, counting.PIECE)


def exact(body: bytes) -> counting.Counts:
    """Count as a reader does that looks at one byte after the other."""
    inside = escaped = False
    values = quotes = containers = 0
    for letter in body:
        was, escaped = escaped, False
        if letter == ord("\\") and not was:
            escaped = True
        elif letter == ord('"') and not was:
            inside, quotes = not inside, quotes + 1
        elif not inside:
            values += letter in b",:"
            containers += letter in b"[{"
    return counting.Counts(values, quotes, containers)


@pytest.mark.parametrize("piece", PIECES)
def test_the_inside_of_texts_is_not_counted_at_any_cut(piece: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counting, "PIECE", piece)
    drawn = random.Random(5)
    for _ in range(800):
        values = [drawn.choice(['a,"b', "\\", '\\"', "[{:,", 5, None, [], {}, {"k,\\": [1]}]) for _ in range(20)]
        body = json.dumps(values).encode()
        whole = counting.Counts()
        for part in counting._outside(np.frombuffer(body, np.uint8)):
            whole += part
        wanted = exact(body)
        assert (whole.values, whole.containers) == (wanted.values, wanted.containers)
    over = counting.Counts(values=10**6, texts=10**6, containers=100)
    counting.check(json.dumps(["[" * 1000]).encode(), over)
    with pytest.raises(ApiError, match="more than 100 arrays and objects"):
        counting.check(b"[" * 1000, over)


def test_a_body_with_too_many_values_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch):
    decoded: list[bytes] = []
    real = msgspec.json.decode
    monkeypatch.setattr(msgspec.json, "decode", lambda body, **how: decoded.append(body) or real(body, **how))
    for item in ('"a",', "1,", "[],", "{},"):
        with pytest.raises(ApiError, match="the body has more than") as caught:
            decode(attacks.filled('{"prompt":[', item, "]}"), completions.CompletionRequest)
        assert caught.value.code == "body_too_complex"
    assert decoded == []
    text = attacks.filled('{"prompt":"', ',[\\"', '"}', 8 * attacks.MB)
    assert len(decode(text, completions.CompletionRequest).prompt) > 4 * attacks.MB
    assert len(decoded) == 1


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, inner: Any) -> None:
        """Be ``inner`` in every other respect."""
        self._inner = inner
        self.characters = 0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, texts: Any, **how: Any) -> Any:
        """Encode, and count."""
        self.calls += 1
        self.characters += sum(map(len, texts))
        return self._inner.encode(texts, **how)


@pytest.fixture
def counted(context: Context) -> Context:
    """Return a context of 1,000 tokens whose tokenizer counts."""
    return replace(context, tokenizer=Counting(context.tokenizer), context=1000)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a"] * 1025, "1025 prompts with n = 1 are more than 1024"),
        ([[1]] * 2000, "2000 prompts"),
        ("a" * 32001, "32001 characters, and the context is 1000 tokens"),
        (["a", "a" * 32001], "32001 characters"),
        ([5] * 1000, "1000 tokens, and the context 1000"),
        ([["a"], [5] * 1000], r"prompt\[0\]\[0\]: it is not a token id"),
    ],
)
def test_prompts_are_refused_before_any_of_them_is_tokenized(counted: Context, given: Any, why: str):
    with pytest.raises(ApiError, match=why):
        completions.read(json.dumps({"prompt": given}).encode(), counted)
    assert counted.tokenizer.calls == 0


def test_a_text_that_hardly_fits_is_counted_in_pieces_until_it_is_too_long(counted: Context):
    long = replace(counted, context=20_000)
    text = attacks.PROSE * (600_000 // len(attacks.PROSE))
    with pytest.raises(ApiError, match=r"more than \d{5} tokens, and the context is 20000") as caught:
        completions.read(json.dumps({"prompt": text}).encode(), long)
    assert caught.value.code == "context_length_exceeded"
    assert 0 < counted.tokenizer.characters < len(text) / 3
    counted.tokenizer.characters = 0
    with pytest.raises(ApiError, match="messages: more than"):
        chat.read(json.dumps({"messages": [{"role": "user", "content": text}]}).encode(), long)
    assert counted.tokenizer.characters < len(text) / 3


def test_reading_stops_between_two_pieces_if_the_client_has_left(counted: Context):
    class LeftError(Exception):
        pass

    looked: list[int] = []

    def check() -> None:
        looked.append(1)
        if len(looked) == 5:
            raise LeftError

    here = replace(counted, check=check, context=bounds.PIECE)
    with pytest.raises(LeftError):
        completions.read(json.dumps({"prompt": ["a " * (bounds.PIECE // 2)] * 100}).encode(), here)
    assert counted.tokenizer.calls == 4


def test_nothing_is_tokenized_if_the_first_prompt_cannot_be_admitted(counted: Context):
    class FullError(Exception):
        pass

    asked: list[int] = []

    def check_room(tokens: int) -> None:
        asked.append(tokens)
        raise FullError

    with pytest.raises(FullError):
        completions.read(b'{"prompt": ["' + b"a" * 800 + b'", "b"]}', replace(counted, check_room=check_room))
    assert (asked, counted.tokenizer.calls) == ([100], 0)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logit_bias": {str(token): 1 for token in range(20_000)}}, "logit_bias"),
        ({"stop_token_ids": [5] * 20_000}, "stop_token_ids"),
        ({"adapters": [{"name": "a"}] * 65}, "adapters"),
        ({"metadata": {str(k): k for k in range(20_000)}}, "metadata"),
        ({"model": "x" * 70_000}, "model"),
        ({"cache_salt": "x" * 70_000}, "cache_salt"),
        ({"guided_json": "[" + "1," * 200_000 + "1]"}, "guided_json"),
        ({"structured_outputs": {"regex": "x" * 300_000}}, "structured_outputs.regex"),
        ({"n": 16, "allowed_token_ids": list(range(70_000))}, "n"),
        ({"bad_words": ["x" * 70_000]}, "bad_words"),
    ],
)
def test_an_oversized_parameter_is_named(context: Context, more: dict[str, Any], param: str):
    with pytest.raises(ApiError) as caught:
        completions.read(json.dumps({"prompt": [5], "max_tokens": 1, **more}).encode(), context)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert len(caught.value.body()) < 2500


def test_messages_items_and_tools_are_counted_before_one_is_examined(context: Context):
    bad = [{"role": "nobody"}]
    for read, body, param in (
        (chat.read, {"messages": bad * 4097}, "messages"),
        (responses.read, {"input": bad * 4097}, "input"),
        (chat.read, {"messages": bad, "tools": [5] * 1025}, "tools"),
    ):
        with pytest.raises(ApiError, match="at most") as caught:
            read(json.dumps(body).encode(), context)
        assert caught.value.param == param


def test_items_become_messages_one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Calls that follow each other are one message's, however many they are: it is not written again for each."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    [asked, made] = response_input.messages([{"role": "user", "content": "a"}, *([call] * 4000)], None)
    first = made["tool_calls"]
    assert (asked["role"], made["role"], len(first)) == ("user", "assistant", 4000)
    found: list[dict[str, Any]] = [made]
    response_input._add(found, call, "function_call", "input[0]")
    assert found[0]["tool_calls"] is first and len(first) == 4001


def test_a_long_error_message_is_shortened():
    error = ApiError(400, "x" * 10_000_000)
    assert len(error.body()) < 1200
