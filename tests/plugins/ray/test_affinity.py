"""What of a body decides where a call goes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from infeng_ray.affinity import MOST_BEGINNING, asked


def beginning(**body: Any) -> bytes:
    return asked(json.dumps(body).encode()).beginning


def test_the_turns_of_a_conversation_have_one_beginning():
    system = {"role": "system", "content": "You are kind."}
    turns = [system, {"role": "user", "content": "Hi"}]
    more = [*turns, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "And?"}]
    assert beginning(messages=turns) == beginning(messages=more) != b""
    assert beginning(messages=turns) != beginning(messages=[system, {"role": "user", "content": "Ho"}])
    assert beginning(input=turns, instructions="x") == beginning(input=more, instructions="x") != beginning(input=turns)


def test_long_prompts_with_a_common_beginning_meet():
    text = "x" * MOST_BEGINNING
    assert (
        beginning(prompt=text + "a") == beginning(prompt=text + "b") and len(beginning(prompt=text)) == MOST_BEGINNING
    )
    assert beginning(prompt="a") != beginning(prompt="b") != beginning(prompt=["b"])


def test_the_model_is_a_text_or_nothing():
    assert asked(b'{"model": "bard", "prompt": [1, 2]}').name == "bard"
    assert asked(b'{"model": 5}').name == "" == asked(b"{}").name


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"messages": ' + b"[" * 50_000, b"null"]
)
def test_what_is_no_object_asks_for_nothing(body: bytes):
    assert (asked(body).name, asked(body).beginning) == ("", b"")


@pytest.mark.parametrize("messages", [{}, [], [5, None], [{"role": 7}], "text", [[[[1]]]]])
def test_odd_messages_are_left_to_the_replica(messages: Any):
    beginning(messages=messages)
