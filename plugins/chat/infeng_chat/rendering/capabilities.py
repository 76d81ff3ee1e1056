"""Detection of a template's capabilities by rendering probes, since no file declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infeng_chat.rendering.renderer import LIMITED, Renderer, RenderError

_USER, _SYSTEM, _ANSWER, _NEXT, _NAME, _KEY, _VALUE = (
    f"needle{word}" for word in ("User", "System", "Answer", "Next", "Name", "Key", "Value")
)
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "a tool",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "a text"}},
            "required": [_KEY],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The forms of messages that a template accepts."""

    text: bool
    """Whether contents may be texts."""
    parts: bool
    """Whether contents may be lists of {"type": "text", "text"}."""
    system: bool
    """Whether a system message is accepted."""
    tools: bool
    """Whether tools are rendered."""
    calls: bool
    """Whether calls of earlier answers are rendered."""
    text_arguments: bool
    """Whether arguments of calls must be texts of JSON; otherwise they are mappings."""
    null_content: bool
    """Whether the content of an answer with calls may be null."""
    ending: str
    """The text after an answer."""
    separator: str | None
    """The text between an answer and the next user's message; None if it cannot be determined."""


class Prober:
    """Probes one template."""

    def __init__(self, renderer: Renderer, special: Mapping[str, Any]) -> None:
        """Probe with ``renderer``. special: texts of the special tokens."""
        self._renderer = renderer
        self._special = special
        self._as_parts = False
        self._tools: list[Any] | None = None  # tools of every probe, for a template that needs some

    def capabilities(self) -> Capabilities:
        """Determine all capabilities; a template that renders only conversations with tools is probed with tools."""
        if not self._rendered([self._user(_USER)]) and self._rendered([self._user(_USER)], tools=[_TOOL]):
            self._tools = [_TOOL]
        text = _USER in self._rendered([self._user(_USER)])
        self._as_parts = True
        said = self._rendered([self._user(_USER)])
        parts = _USER in said and "'text'" not in said and '"text"' not in said
        self._as_parts = parts and not text
        system = self._rendered([_message("system", self._content(_SYSTEM)), self._user(_USER)])
        with_tools = self._rendered([self._user(_USER)], tools=[_TOOL])
        calls, text_arguments, null_content = self._calls()
        ending, separator = self._turns()
        return Capabilities(
            text=text or not parts,
            parts=parts,
            system=_SYSTEM in system and _USER in system,
            tools=_NAME in with_tools,
            calls=calls,
            text_arguments=text_arguments,
            null_content=null_content,
            ending=ending,
            separator=separator,
        )

    def _calls(self) -> tuple[bool, bool, bool]:
        """Return whether calls are rendered, whether arguments must be texts, and whether content may be null."""
        mapping, text = {_KEY: _VALUE}, f'{{"{_KEY}": "{_VALUE}"}}'
        for arguments in (mapping, text):
            for content in ("", None):
                said = self._called(arguments, content)
                if _NAME in said and _VALUE in said and f"'{_VALUE}'" not in said and f'\\"{_VALUE}' not in said:
                    return True, arguments is text, self._takes_null(arguments)
        return False, False, _USER in self._called(mapping, None)

    def _takes_null(self, arguments: Any) -> bool:
        """Return whether an answer with calls may have null content, at the end and before the call's result."""
        result = _message("tool", self._content(_NEXT)) | {"tool_call_id": "call00000", "name": _NAME}
        is_followed = bool(self._called(arguments, None, result) or not self._called(arguments, "", result))
        return is_followed and _NAME in self._called(arguments, None)

    def _called(self, arguments: Any, content: str | None, *more: Mapping[str, Any]) -> str:
        call = {"type": "function", "id": "call00000", "function": {"name": _NAME, "arguments": arguments}}
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        return self._rendered([self._user(_USER), answer, *more], tools=[_TOOL])

    def _turns(self) -> tuple[str, str | None]:
        """Return the text after an answer at the end, and the text between an answer and the next message."""
        turns = [self._user(_USER), _message("assistant", self._content(_ANSWER))]
        _, _, ending = self._rendered(turns).rpartition(_ANSWER)
        _, _, rest = self._rendered([*turns, self._user(_NEXT)]).rpartition(_ANSWER)
        separator, found, _ = rest.partition(_NEXT)
        return ending, separator if found else None

    def _rendered(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """Render messages; returns "" if the template refuses them.

        Raises ModelError if rendering exceeds the limits.
        """
        variables = {"tools": self._tools, "documents": None, "add_generation_prompt": False, **self._special, **more}
        try:
            return self._renderer.attempt([{"messages": messages, **variables}])[0]
        except RenderError as error:
            if error.kind in LIMITED:
                raise self._renderer.broken(error, "rendered") from None
            return ""

    def _user(self, content: str) -> dict[str, Any]:
        return _message("user", self._content(content))

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._as_parts else text


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}
