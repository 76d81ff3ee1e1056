"""/v1/responses, stateless: each request has the whole conversation, and nothing is stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infeng_core.api.servers import SAMPLING
from infeng_serve.protocol import response_input, structured, tools
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.dialogue import dialogue
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.messages import checked
from infeng_serve.protocol.parameters import FORMS, REFUSED, Common, ResponseFormat, StreamOptions
from infeng_serve.protocol.parameters import LOGPROBS as LIKELY
from infeng_serve.protocol.reading import convert, decode
from infeng_serve.protocol.requests import adapter_of, requests
from infeng_serve.protocol.response_answer import ResponseAnswer
from infeng_serve.protocol.sampling import check_likely, named_paths, sampling, variables
from infeng_serve.protocol.structured import Form
from infeng_serve.protocol.tools import FunctionDefinition, FunctionName, Selection, ToolChoice

LOGPROBS = "message.output_text.logprobs"
"""The value of ``include`` that asks for log-probabilities."""

_TOOLS = {"items": {"$ref": "#/components/schemas/ResponseTool"}}
_ONLY_DISABLED = Meta(
    description="only disabled: nothing is cut from an input", extra_json_schema={"enum": ["disabled", None]}
)
_INPUT = {
    "minItems": 1,
    "items": {
        "anyOf": [
            {"$ref": f"#/components/schemas/{name}"}
            for name in ("InputMessage", "InputCall", "InputCallOutput", "InputReasoning")
        ]
    },
}


class ResponseTool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    name: Annotated[str, Meta(extra_json_schema={"minLength": 1})]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Meta(description="ignored: a call that must come keeps to the schema")] = None


class ResponseToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tool that must be called, or the tools that may be called."""

    type: Literal["function", "allowed_tools"] = "function"
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[ResponseTool] | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer."""

    type: Annotated[str, Meta(description="text, json_object or json_schema", extra_json_schema=FORMS)]
    name: str | None = None
    schema: Annotated[dict[str, Any] | bool | None, Meta(description="with json_schema")] = None
    strict: Annotated[bool | None, Meta(description="ignored: answers always keep to the schema")] = None
    description: str | None = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: Annotated[str | None, Meta(description="ignored")] = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of reasoning."""

    effort: Annotated[str | None, Meta(description="the template's variable reasoning_effort")] = None
    summary: Annotated[str | None, Meta(description="ignored: reasoning is given whole")] = None
    generate_summary: Annotated[str | None, Meta(description="ignored")] = None


class ResponsesRequest(Common, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/responses."""

    input: Annotated[
        str | list[Any], Meta(description="a text, or the items of a conversation", extra_json_schema=_INPUT)
    ]
    instructions: Annotated[str | None, Meta(description="a system message before the input")] = None
    max_output_tokens: Annotated[int | None, Meta(description="most new tokens")] = None
    text: Annotated[TextOptions | None, Meta(description="format: text, json_object or json_schema")] = None
    reasoning: Annotated[ReasoningOptions | None, Meta(description="effort")] = None
    tools: Annotated[
        list[Any] | None, Meta(description="functions that the model may call", extra_json_schema=_TOOLS)
    ] = None
    tool_choice: Annotated[
        str | ResponseToolChoice | None,
        Meta(
            description="auto, none, required, one function, or allowed_tools",
            extra_json_schema=tools.choice_of("ResponseToolChoice"),
        ),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="false: no more than one call in an answer")] = None
    include: Annotated[list[str] | None, Meta(description=f"{LOGPROBS}; others are ignored")] = None
    top_logprobs: Annotated[
        int | None,
        Meta(description="so many likely tokens beside each token of a message", extra_json_schema=LIKELY),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="variables of the template, such as enable_thinking")
    ] = None
    enable_thinking: Annotated[bool | None, Meta(description="the template's variable of that name")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="ignored: the last event has the usage")] = None
    max_tool_calls: Annotated[int | None, Meta(description="ignored: the server calls no tools")] = None
    truncation: Annotated[str | None, _ONLY_DISABLED] = None
    background: Annotated[bool | None, Meta(description="only false", extra_json_schema={"enum": [False, None]})] = None
    previous_response_id: Annotated[
        str | None, Meta(description="refused: give the whole conversation", extra_json_schema=REFUSED)
    ] = None
    conversation: Annotated[str | dict[str, Any] | None, Meta(description="refused", extra_json_schema=REFUSED)] = None
    prompt: Annotated[
        dict[str, Any] | None, Meta(description="refused: there are no stored prompts", extra_json_schema=REFUSED)
    ] = None


def read(body: bytes, context: Context) -> ResponseAnswer:
    """Return the answer for a body. Slow: renders the template and tokenizes. Raises ApiError."""
    given = decode(body, ResponsesRequest, context.ignored)
    adapter = adapter_of(given, context)
    _check(given)
    selection = _selection(given)
    effort = given.reasoning.effort if given.reasoning is not None else None
    ready = dialogue(
        context,
        checked(response_input.messages(given.input, given.instructions), "input"),
        selection,
        _form(given),
        size=len(body),
        param="input",
        variables=variables(given.chat_template_kwargs, reasoning_effort=effort, enable_thinking=given.enable_thinking),
    )
    reports = given.top_logprobs is not None or LOGPROBS in (given.include or ())
    more: dict[str, Any] = {} if given.max_output_tokens is None else {"max_tokens": given.max_output_tokens}
    params = sampling(
        given,
        context,
        otherwise=ready.room,
        prompt=ready.prompt,
        logprobs=(given.top_logprobs or 0) if reports else None,
        processors=ready.processors,
        skip_special_tokens=ready.skip_special_tokens,
        **more,
    )
    made = requests(given, context, [ready.prompt.ids], params, adapter)
    answer = ResponseAnswer(given, context, made, ready, selection)
    answer.paths = {**ready.paths, **named_paths(given)}
    return answer


def _check(given: ResponsesRequest) -> None:
    check_likely(given.top_logprobs)
    wanted, bounds = given.max_output_tokens, SAMPLING["max_tokens"].bounds()
    if wanted is not None and not bounds["minimum"] <= wanted <= bounds["maximum"]:
        why = f"{wanted} is not an integer from {bounds['minimum']} to {bounds['maximum']}"
        raise invalid("max_output_tokens", f"max_output_tokens: {why}")
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(given, name) is not None:
            raise not_supported(name, "nothing is stored here: give the whole conversation as input")
    if given.background:
        raise not_supported("background", "answers are sent to the waiting client only: leave it out")
    if given.truncation not in (None, "disabled"):
        raise not_supported("truncation", "nothing is cut from an input: give disabled, or leave it out")


def _selection(given: ResponsesRequest) -> Selection:
    asked = given.tool_choice
    choice = _choice(asked) if isinstance(asked, ResponseToolChoice) else asked
    return tools.select([_tool(tool, f"tools[{i}]") for i, tool in enumerate(given.tools or ())], choice,
                        given.parallel_tool_calls)  # fmt: skip


def _tool(given: Any, path: str) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise not_supported(f"{path}.type", f"{kind!r} is not offered: give functions")
    tool = convert(given, ResponseTool, path)
    if not tool.name:
        raise invalid(f"{path}.name", f"{path}.name: it is empty")
    function = FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.parameters)
    known = {name: value for name, value in msgspec.structs.asdict(function).items() if value is not None}
    return {"type": "function", "function": known}


def _choice(given: ResponseToolChoice) -> ToolChoice:
    if given.type == "allowed_tools":
        names = [tools.ToolName(function=FunctionName(name=tool.name)) for tool in given.tools or ()]
        return ToolChoice(type="allowed_tools", allowed_tools=tools.AllowedTools(mode=given.mode, tools=names))
    if given.name is None:
        raise invalid("tool_choice.name", "missing parameter tool_choice.name", "missing_required_parameter")
    return ToolChoice(function=FunctionName(name=given.name))


def _form(given: ResponsesRequest) -> Form | None:
    asked = given.text.format if given.text is not None else None
    if asked is None:
        return structured.form(given)
    if asked.type == "json_schema" and asked.schema is None:
        raise structured.missing_schema("text.format.schema")
    formatted = structured.of_format(ResponseFormat(type=asked.type, schema=asked.schema), "text.format")
    return structured.form(given, formatted)
