"""Assembles a stream's events to the answer that the server would have sent without streaming."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_client.results import Completion, Json, read_completion

JOINED = ("content", "reasoning_content", "reasoning", "refusal", "arguments", "text")
"""Fields that arrive in pieces; other fields arrive whole."""


class Gathering:
    """The answer of a stream so far."""

    def __init__(self) -> None:
        """Start empty."""
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, raw: Json) -> None:
        """Add one event's JSON."""
        for place, choice in enumerate(raw.get("choices") or ()):
            index = int(choice.get("index", place))
            _merge(self._choices.setdefault(index, {}), {"message" if k == "delta" else k: choice[k] for k in choice})
        _merge(self._body, {key: value for key, value in raw.items() if key != "choices"})

    def has_ended(self, index: int) -> bool:
        """Return whether a choice has its finish reason."""
        return bool(self._choices.get(index, {}).get("finish_reason"))

    def have_ended(self, count: int) -> bool:
        """Return whether ``count`` choices have ended."""
        return sum(map(self.has_ended, self._choices)) >= count

    def text(self) -> str:
        """Return the first choice's text."""
        choice = self._choices.get(0, {})
        return str((choice["message"].get("content") if "message" in choice else choice.get("text")) or "")

    def completion(self) -> Completion:
        """Return the answer so far."""
        object = str(self._body.get("object", "")).replace(".chunk", "")
        choices = [_whole(self._choices[index]) for index in sorted(self._choices)]
        return read_completion(self._body | {"object": object, "choices": choices})


def _merge(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add the fields of a part: texts and lists are appended, objects merged recursively, other values replaced."""
    for key, value in part.items():
        old = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif key == "tool_calls":
            calls = whole[key] = old if isinstance(old, dict) else {}
            for place, call in enumerate(value):
                _merge(calls.setdefault(int(call.get("index", place)), {}), call)
        elif isinstance(value, Mapping):
            inner = whole[key] = old if isinstance(old, dict) else {}
            _merge(inner, value)
        elif isinstance(value, list):
            inner_list = whole[key] = old if isinstance(old, list) else []
            inner_list.extend(value)
        else:
            whole[key] = old + value if key in JOINED and isinstance(old, str) else value


def _whole(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice with its tool calls as an ordered list."""
    message = choice.get("message")
    if message is None or "tool_calls" not in message:
        return dict(choice)
    calls = message["tool_calls"] or {}
    return {**choice, "message": {**message, "tool_calls": [calls[index] for index in sorted(calls)]}}
