"""Conversion of a body of /v1/messages to a conversation of chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_serve.api.dialects import (
    ChatRequest,
    Context,
    FunctionName,
    StructuredOutputs,
    ToolChoice,
    conversation,
    convert,
    decode,
    invalid,
    not_supported,
)

from infeng_dialects.anthropic.answer import MessageAnswer
from infeng_dialects.anthropic.messages import messages
from infeng_dialects.anthropic.parameters import AnthropicTool, AnthropicToolChoice, Conversing, MessagesRequest

SAME = ("max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "cache_salt", "priority", "timeout")
"""Parameters with the same name and meaning in chat."""


def read(body: bytes, context: Context) -> MessageAnswer:
    """Return the answer for a body. Slow: renders the template and tokenizes. Raises ApiError."""
    given = decode(body, MessagesRequest, context.ignored)
    if given.max_tokens < 1:
        raise invalid("max_tokens", f"max_tokens: {given.max_tokens} is not an integer from 1 on")
    if given.container is not None:
        raise not_supported("container", "no code runs here: leave it out")
    _check_edits(given.context_management)
    asked = asked_of(given, context)
    for name in SAME:
        setattr(asked, name, getattr(given, name))
    asked.stop = given.stop_sequences or None
    form = given.output_config.format if given.output_config is not None else None
    if form is not None:
        asked.structured_outputs = StructuredOutputs(json=form.schema)
    found = conversation(asked, context, len(body))
    shows = given.thinking is None or given.thinking.display != "omitted"
    answer = MessageAnswer(asked, context, found, stops=tuple(given.stop_sequences or ()), shows_thinking=shows)
    answer.paths = found.paths
    return answer


def asked_of(given: Conversing, context: Context) -> ChatRequest:
    """Return the conversation as parameters of chat; raises ApiError."""
    if given.mcp_servers:
        raise not_supported("mcp_servers", "the server calls no tools: call them in the client")
    said = messages(given.messages, given.system)
    choice, parallel = _choice(given.tool_choice)
    asked = ChatRequest(
        model=given.model,
        messages=said,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(given.tools or ())] or None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning_effort=given.output_config.effort if given.output_config is not None else None,
    )
    if said[-1]["role"] == "assistant" and not said[-1].get("tool_calls"):
        asked.continue_final_message = True
    if given.thinking is not None and given.thinking.type != "adaptive":
        asked.enable_thinking = given.thinking.type == "enabled"
        if given.thinking.budget_tokens is not None:
            context.ignored.note("thinking.budget_tokens")
    return asked


def _tool(given: Any, path: str) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if isinstance(kind, str) and kind != "custom":
        raise not_supported(f"{path}.type", f"{kind[:64]!r} is a tool of Anthropic's servers: give functions")
    tool = convert(given, AnthropicTool, path)
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(given: AnthropicToolChoice | None) -> tuple[str | ToolChoice | None, bool | None]:
    """Return ``tool_choice`` and ``parallel_tool_calls`` of chat."""
    if given is None:
        return None, None
    parallel = None if given.disable_parallel_tool_use is None else not given.disable_parallel_tool_use
    if given.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[given.type], parallel
    if given.name is None:
        raise invalid("tool_choice.name", "missing parameter tool_choice.name", "missing_required_parameter")
    return ToolChoice(function=FunctionName(name=given.name)), parallel


def _check_edits(given: Mapping[str, Any] | None) -> None:
    """Raise ApiError for edits of the conversation that would take something away."""
    for index, edit in enumerate((given or {}).get("edits") or ()):
        if not isinstance(edit, Mapping) or edit.get("keep") != "all":
            path = f"context_management.edits[{index}]"
            raise not_supported(path, "nothing is cut from a conversation here: cut it in the client")
