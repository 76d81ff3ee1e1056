"""Conversion of messages in OpenAI's form to the form that a template accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from infeng_chat.rendering.capabilities import Capabilities
from infeng_core.api import RequestError

MOST_MESSAGES = 4096
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,63}")
_TEXTS = ("text", "input_text", "output_text", "refusal")
_TOOLS = """\
You may call these functions, each described by a JSON schema:
{schemas}

To call one, answer with nothing but its name and arguments as JSON in tags, once for each call:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>"""


def prepared(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], can: Capabilities, source: str
) -> list[dict[str, Any]]:
    """Convert messages for the template ``source``; raises RequestError for an invalid conversation.

    A system message that the template does not accept is put before the first user's text, and tools that it does not
    render are described in the system message.
    """
    if not messages or len(messages) > MOST_MESSAGES:
        raise RequestError("messages", f"there are {len(messages)}", f"send at least one and at most {MOST_MESSAGES}")
    found = [_message(message, can, source) for message in messages]
    if tools and not can.tools:
        _instruct(found, _TOOLS.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)))
    if not can.system:
        found = _without_system(found)
    for message in found:
        message["content"] = _content(message.get("content"), can, bool(message.get("tool_calls")))
    return found


def _message(message: Mapping[str, Any], can: Capabilities, source: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError("messages", "one is not a JSON object", 'send {"role": ..., "content": ...}')
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        why = f"{str(role)[:80]!r} is not a role"
        raise RequestError("messages", why, "use system, user, assistant or tool")
    found = dict(message)
    if role == "developer" and "developer" not in source:
        found["role"] = "system"
    calls = message.get("tool_calls")
    if calls:
        found["tool_calls"] = _calls(calls, can)
    elif calls is not None:
        del found["tool_calls"]  # templates test whether the key exists
    if "reasoning_content" in found and "reasoning_content" not in source:
        name = next((name for name in ("thinking", "reasoning") if re.search(rf"\.{name}\b|'{name}'", source)), None)
        if name is not None:
            found.setdefault(name, found["reasoning_content"])
    return found


def _calls(calls: Any, can: Capabilities) -> list[dict[str, Any]]:
    """Return the calls of an answer with arguments in the template's form."""
    found = []
    for call in calls if isinstance(calls, (list, tuple)) else [{}]:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            remedy = 'send {"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}'
            raise RequestError("tool_calls", "one is not a function call", remedy)
        made = {"type": "function", **call, "function": {**function, "arguments": _arguments(function, can)}}
        found.append(made)
    return found


def _arguments(function: Mapping[str, Any], can: Capabilities) -> Any:
    given = function.get("arguments", {})
    if can.text_arguments:
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    if not isinstance(given, str):
        return given
    try:
        parsed = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return given  # arguments cut off by a token limit stay as they are
    return parsed if isinstance(parsed, dict) else given


def _content(content: Any, can: Capabilities, calls: bool) -> Any:
    """Return a content in a form that the template accepts: a text, a list of parts, or null."""
    if content is None:
        return None if can.null_content and calls else _content("", can, False)
    if isinstance(content, str):
        return content if can.text else [{"type": "text", "text": content}]
    text = text_of(content)
    return [{"type": "text", "text": part} for part in _parts(content)] if can.parts else text


def text_of(content: Any) -> str:
    """Return a content as one text; raises RequestError for a part that is not a text."""
    return content if isinstance(content, str) else "" if content is None else "".join(_parts(content))


def _parts(content: Any) -> list[str]:
    remedy = 'send a text, or a list of {"type": "text", "text": ...}'
    if not isinstance(content, (list, tuple)):
        raise RequestError("content", f"{type(content).__name__} is neither a text nor a list of parts", remedy)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
        if kind not in _TEXTS or not isinstance(text, str):
            raise RequestError("content", f"a part of type {str(kind)[:40]!r} cannot be read by this model", remedy)
        texts.append(text)
    return texts


def _instruct(messages: list[dict[str, Any]], text: str) -> None:
    """Append a text to the system message, or add one."""
    if messages[0]["role"] == "system":
        messages[0]["content"] = f"{text_of(messages[0].get('content'))}\n\n{text}"
    else:
        messages.insert(0, {"role": "system", "content": text})


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in which each system message is put before the text of the next user's message."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(text_of(message.get("content")))
        elif waiting and message["role"] == "user":
            found.append({**message, "content": "\n\n".join([*waiting, text_of(message.get("content"))])})
            waiting = []
        else:
            found.append(message)
    return found + [{"role": "user", "content": "\n\n".join(waiting)}] * bool(waiting)
