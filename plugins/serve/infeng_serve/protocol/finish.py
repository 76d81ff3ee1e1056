"""Finish reasons in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from infeng_core.api import Completion, Tokenizer
from infeng_serve.protocol.token_bytes import token_bytes

Reason = Literal["stop", "length"]
Cut = Literal["cancelled", "timeout"]


def reason(completion: Completion) -> Reason:
    """Return stop or length; length also stands for an answer that was cut off, see ``cut``."""
    return "stop" if completion.finish_reason == "stop" else "length"


def cut(completion: Completion) -> Cut | None:
    """Return what cut an answer off, None if it ended by itself or at max_tokens."""
    found = completion.finish_reason
    return found if found in ("cancelled", "timeout") else None


def stop_string(completion: Completion, stops: Sequence[str], tokenizer: Tokenizer) -> str | None:
    """Return the first of the stop strings that ended an answer, None if none did.

    The text ends before it, so it is looked for in the tokens: it reaches into the last one.
    """
    if completion.finish_reason != "stop" or not stops or not completion.token_ids:
        return None
    most = max(len(stop.encode()) for stop in stops)
    pieces = [token_bytes(tokenizer, token) for token in completion.token_ids[-most - 8 :]]
    data, last = b"".join(pieces), len(b"".join(pieces[:-1]))
    found = [(data.rfind(stop.encode()), stop) for stop in stops]
    ended = [(begin, stop) for begin, stop in found if begin >= 0 and begin + len(stop.encode()) > last]
    return min(ended)[1] if ended else None
