"""What of a call's body decides where it goes: its model, and the beginning of its prompt."""

from __future__ import annotations

from typing import Any

import msgspec

MOST_BEGINNING = 2048
"""Bytes of a prompt's JSON that count, some 500 tokens: calls that share more share a replica's prefix cache anyway."""


class _Message(msgspec.Struct):
    role: Any = None


class Asked(msgspec.Struct):
    """The fields of a body that count; all others are skipped."""

    model: Any = None
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    lora_name: Any = None

    @property
    def name(self) -> str:
        """The model; "" if the body names none."""
        return self.model if isinstance(self.model, str) else ""

    @property
    def beginning(self) -> bytes:
        """The beginning of the prompt, which the further turns of a conversation share."""
        first = bytes(self.system)[:MOST_BEGINNING] + bytes(self.instructions)[:MOST_BEGINNING]
        for turns in (self.messages, self.input):
            first += _opening(turns)
        return (first + bytes(memoryview(self.prompt)[:MOST_BEGINNING]))[:MOST_BEGINNING]


_BODY = msgspec.json.Decoder(Asked)
_TURNS = msgspec.json.Decoder(list[msgspec.Raw])
_ROLE = msgspec.json.Decoder(_Message)


def asked(body: bytes) -> Asked:
    """Read a body; one that is no JSON object asks for nothing, and the replica that gets it says what is wrong."""
    try:
        return _BODY.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return Asked()


def _opening(turns: msgspec.Raw) -> bytes:
    """Return the messages up to the first of the user; of a text its beginning."""
    if bytes(memoryview(turns)[:1]) != b"[":
        return bytes(memoryview(turns)[:MOST_BEGINNING])
    found = b""
    try:
        for turn in _TURNS.decode(turns):
            found += bytes(memoryview(turn)[:MOST_BEGINNING])
            if len(found) >= MOST_BEGINNING or _ROLE.decode(turn).role == "user":
                break
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    return found
