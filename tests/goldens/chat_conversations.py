"""Conversations whose prompts are compared with transformers'."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import date
from typing import Any

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
REFUSED = "refused"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather <of> a 'city'",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name, such as Łódź"},
                    "unit": {"type": "string", "enum": ["C", "F"], "description": "Of temperatures"},
                    "days": {"type": "integer", "description": "How many"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]


def _said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _called(content: str | None, first: Any, second: Any) -> list[dict[str, Any]]:
    """Return a conversation with two calls and their results."""
    calls = [
        {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": first}},
        {"id": "abcdefgh2", "type": "function", "function": {"name": "now", "arguments": second}},
    ]
    return [
        _said("system", "You are terse."),
        _said("user", "How warm is it in Łódź, and when?"),
        _said("assistant", content, tool_calls=calls),
        _said("tool", '{"degrees": 21}', tool_call_id="abcdefgh1", name="get_weather"),
        _said("tool", "12:00", tool_call_id="abcdefgh2", name="now"),
    ]


_HI = [_said("user", "Hi")]
_TURNS = [
    _said("system", "  You are 'terse' & <kind>.\n"),
    _said("user", "Grüße, 你好 🦙\n\n  indented\n"),
    _said("assistant", "Hello!\n"),
    _said("user", '{{ 7 * 7 }} {% raw %} \\n "quoted"'),
]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "hi": {"messages": _HI},
    "system": {"messages": [_said("system", "You are terse."), *_HI]},
    "turns": {"messages": _TURNS},
    "answered": {"messages": [*_HI, _said("assistant", "Hello!")], "add_generation_prompt": False},
    "thinking": {"messages": _HI, "enable_thinking": True, "thinking": True},
    "not thinking": {"messages": _HI, "enable_thinking": False, "thinking": False},
    "thought": {"messages": [*_HI, _said("assistant", "<think>\nHm.\n</think>\n\nHello!"), _said("user", "So?")]},
    "tools": {"messages": _HI, "tools": TOOLS},
    "tools and system": {"messages": _TURNS, "tools": TOOLS},
}
CALLED: dict[str, dict[str, Any]] = {
    "called, null": {"messages": _called(None, {"city": "Łódź", "days": 2}, {}), "tools": TOOLS},
    "called, null and texts": {"messages": _called(None, '{"city": "Łódź", "days": 2}', "{}"), "tools": TOOLS},
    "called": {"messages": _called("", {"city": "Łódź", "days": 2}, {}), "tools": TOOLS},
}
"""The same in the forms that templates take; the first that one does not refuse counts."""


def digest(text: str) -> str:
    """Return what is kept of a prompt: the texts of templates stay where they are from. The date does not count."""
    for form in ("%Y-%m-%d", "%B %d, %Y", "%d %b %Y"):
        text = text.replace(date.today().strftime(form), form)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def variables(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a conversation gives to its template beside messages and tools."""
    return {name: value for name, value in conversation.items() if name not in ("messages", "tools")}
