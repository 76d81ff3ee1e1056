"""Tools of a request, and the choice which of them may or must be called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.reading import convert


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(extra_json_schema={"minLength": 1})]
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, Meta(description="a JSON schema of an object")] = None
    strict: Annotated[bool | None, Meta(description="ignored: a call that must come keeps to the schema")] = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool, which is always a function."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(msgspec.Struct, kw_only=True):
    """Names a function."""

    name: str


class ToolName(msgspec.Struct, kw_only=True):
    """Names a tool."""

    type: Literal["function"] = "function"
    function: FunctionName


class AllowedTools(msgspec.Struct, kw_only=True):
    """Some of the tools."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[ToolName]


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tool that must be called, or the tools that may be called."""

    type: Literal["function", "allowed_tools"] = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


def choice_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a ``tool_choice``: a word, or the struct of this name."""
    words = {"enum": ["none", "auto", "required"]}
    return {"allOf": [{"anyOf": [words, {"$ref": f"#/components/schemas/{name}"}, {"type": "null"}]}]}


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools of one request."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools in OpenAI's form, for the template and the parser."""
    must_call: bool = False
    name: str | None = None
    """The tool that must be called."""
    parallel: bool = True
    """Whether an answer may have several calls."""


def select(
    tools: Sequence[Any] | None, choice: str | ToolChoice | None, parallel: bool | None, path: str = "tools"
) -> Selection:
    """Return the selection by a request's ``tools`` and ``tool_choice``; raises ApiError."""
    known = _known(tools or (), path)
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise invalid("tool_choice", f"tool_choice: {choice!r} is not none, auto, required or a tool")
    if choice == "none":
        return Selection()
    if choice is None or choice == "auto":
        return Selection(tuple(known.values()), parallel=parallel is not False)
    if not known:
        raise invalid("tool_choice", "tool_choice: there are no tools")
    if isinstance(choice, str):
        return Selection(tuple(known.values()), must_call=True, parallel=parallel is not False)
    return _chosen(known, choice, parallel is not False)


def _chosen(known: Mapping[str, Mapping[str, Any]], choice: ToolChoice, parallel: bool) -> Selection:
    if choice.type == "function":
        if choice.function is None:
            raise invalid("tool_choice.function", "missing parameter tool_choice.function",
                          "missing_required_parameter")  # fmt: skip
        name = _existing(known, choice.function.name, "tool_choice.function.name")
        return Selection(tuple(known.values()), must_call=True, name=name, parallel=False)
    if choice.allowed_tools is None or not choice.allowed_tools.tools:
        raise invalid("tool_choice.allowed_tools", "tool_choice.allowed_tools: it has no tools")
    path = "tool_choice.allowed_tools.tools"
    names = [
        _existing(known, tool.function.name, f"{path}[{index}].function.name")
        for index, tool in enumerate(choice.allowed_tools.tools)
    ]
    allowed = tuple(known[name] for name in dict.fromkeys(names))
    return Selection(allowed, must_call=choice.allowed_tools.mode == "required", parallel=parallel)


def _existing(known: Mapping[str, Any], name: str, path: str) -> str:
    if name not in known:
        raise invalid(path, f"{path}: there is no tool {name!r}")
    return name


def _known(tools: Sequence[Any], path: str) -> dict[str, Mapping[str, Any]]:
    """Return the tools by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for index, given in enumerate(tools):
        place = f"{path}[{index}]"
        kind = given.get("type", "function") if isinstance(given, dict) else "function"
        if isinstance(kind, str) and kind != "function":
            raise not_supported(f"{place}.type", f"{kind!r} is not offered: give functions")
        name = convert(given, Tool, place).function.name
        if not name:
            raise invalid(f"{place}.function.name", f"{place}.function.name: it is empty")
        if name in found:
            raise invalid(f"{place}.function.name", f"{place}.function.name: {name!r} is there twice")
        found[name] = {"type": "function", **given}
    return found
