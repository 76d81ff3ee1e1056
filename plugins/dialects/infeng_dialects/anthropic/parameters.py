"""The bodies of /v1/messages and /v1/messages/count_tokens. docs/serving-requests.md prints the descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from infeng_serve.api.dialects import PRIORITY, SECONDS, known
from msgspec import Meta


class CacheControl(msgspec.Struct, kw_only=True):
    """Marks the end of a prefix to cache; ignored, since every prefix is looked up."""

    type: str = "ephemeral"
    ttl: str | None = None


class TextBlock(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text of ``system``."""

    type: Literal["text"] = "text"
    text: str
    cache_control: Annotated[CacheControl | None, Meta(description="ignored")] = None
    citations: Annotated[Any, Meta(description="ignored: nothing is cited")] = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model reasons before its answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, Meta(description="ignored: reasoning counts to max_tokens")] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None, Meta(description="omitted: the thinking of a block is empty")
    ] = None


class JsonFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A form of the answer."""

    type: Literal["json_schema"] = "json_schema"
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the answer."""

    format: Annotated[JsonFormat | None, Meta(description="json_schema with its schema")] = None
    effort: Annotated[str | None, Meta(description="the template's variable reasoning_effort")] = None


class AnthropicToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicTool(msgspec.Struct, kw_only=True):
    """A function that the model may call."""

    type: Annotated[str | None, Meta(description="custom", extra_json_schema={"enum": ["custom", None]})] = None
    name: Annotated[str, Meta(extra_json_schema={"minLength": 1})]
    description: str | None = None
    input_schema: Annotated[dict[str, Any], Meta(description="a JSON schema of an object")]


_MESSAGE: dict[str, Any] = {
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["user", "assistant", "system"]},
            "content": {"type": ["string", "array"]},
        },
    },
}
_NOTHING: dict[str, Any] = {"enum": [None, []]}


class Conversing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of both routes."""

    model: Annotated[str, Meta(description="the base model's name or an adapter's")]
    messages: Annotated[
        list[Any], Meta(description="the turns; the last one of an assistant is continued", extra_json_schema=_MESSAGE)
    ]
    system: Annotated[str | list[TextBlock] | None, Meta(description="a system message before the turns")] = None
    tools: Annotated[
        list[Any] | None,
        Meta(
            description="functions that the model may call",
            extra_json_schema={"items": {"$ref": "#/components/schemas/AnthropicTool"}},
        ),
    ] = None
    tool_choice: Annotated[AnthropicToolChoice | None, Meta(description="auto, any, tool with its name, or none")] = (
        None
    )
    thinking: Annotated[
        Thinking | None, Meta(description="enabled or disabled: the template's variable enable_thinking")
    ] = None
    output_config: Annotated[OutputConfig | None, Meta(description="format: json_schema; effort")] = None
    cache_control: Annotated[
        CacheControl | None, Meta(description="ignored: every prompt is looked up in the cache")
    ] = None
    mcp_servers: Annotated[
        list[Any] | None, Meta(description="refused: the server calls no tools", extra_json_schema=_NOTHING)
    ] = None


class CountTokensRequest(Conversing, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(Conversing, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[
        int, Meta(description="most new tokens, reasoning included", extra_json_schema={"minimum": 1})
    ]
    stream: Annotated[bool | None, Meta(description="events as tokens come")] = None
    stop_sequences: Annotated[list[str] | None, known("stop")] = None
    temperature: Annotated[float | None, known("temperature")] = None
    top_p: Annotated[float | None, known("top_p")] = None
    top_k: Annotated[int | None, known("top_k")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="ignored")] = None
    service_tier: Annotated[str | None, Meta(description="ignored")] = None
    container: Annotated[Any, Meta(description="refused: no code runs here", extra_json_schema={"enum": [None]})] = None
    inference_geo: Annotated[str | None, Meta(description="ignored")] = None
    speed: Annotated[str | None, Meta(description="ignored")] = None
    context_management: Annotated[
        dict[str, Any] | None,
        Meta(description="only edits that keep all: nothing is cut from a conversation"),
    ] = None
    seed: Annotated[int | None, known("seed")] = None
    cache_salt: Annotated[str | None, Meta(description="as in chat")] = None
    priority: Annotated[int | None, PRIORITY] = None
    timeout: Annotated[float | None, Meta(description="as in chat", extra_json_schema=SECONDS)] = None
