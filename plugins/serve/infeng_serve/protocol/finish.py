"""Finish reasons in OpenAI's terms."""

from __future__ import annotations

from typing import Literal

from infeng_core.api import Completion

Reason = Literal["stop", "length"]
Cut = Literal["cancelled", "timeout"]


def reason(completion: Completion) -> Reason:
    """Return stop or length; length also stands for an answer that was cut off, see ``cut``."""
    return "stop" if completion.finish_reason == "stop" else "length"


def cut(completion: Completion) -> Cut | None:
    """Return what cut an answer off, None if it ended by itself or at max_tokens."""
    found = completion.finish_reason
    return found if found in ("cancelled", "timeout") else None
