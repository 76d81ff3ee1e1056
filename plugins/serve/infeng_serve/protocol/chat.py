"""/v1/chat/completions: the request body and its conversion to requests of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from infeng_chat.template import ChatPrompt
from msgspec import Meta

from infeng_core.api import Request
from infeng_serve.protocol import structured, tools
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.answer_reader import Reader
from infeng_serve.protocol.chat_answer import ChatAnswer
from infeng_serve.protocol.dialogue import Dialogue, dialogue, rendered
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.messages import MESSAGES, checked
from infeng_serve.protocol.parameters import LOGPROBS, Choices
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.requests import adapter_of, requests
from infeng_serve.protocol.sampling import (
    check_likely,
    choices,
    longest,
    named_paths,
    note_unused,
    sampling,
    variables,
)
from infeng_serve.protocol.tools import Selection, ToolChoice, choice_of

_TOP = Meta(description="so many likely tokens beside each; needs logprobs", extra_json_schema=LOGPROBS)
_TOOLS = {"items": {"$ref": "#/components/schemas/Tool"}}


class ChatRequest(Choices, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Any], Meta(description="the turns of the conversation", extra_json_schema=MESSAGES)]
    logprobs: Annotated[bool | None, Meta(description="log-probabilities of the answer's tokens")] = None
    top_logprobs: Annotated[int | None, _TOP] = None
    tools: Annotated[
        list[Any] | None, Meta(description="functions that the model may call", extra_json_schema=_TOOLS)
    ] = None
    tool_choice: Annotated[
        str | ToolChoice | None,
        Meta(
            description="auto, none, required, one function, or allowed_tools",
            extra_json_schema=choice_of("ToolChoice"),
        ),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="false: no more than one call in an answer")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="variables of the template, such as enable_thinking")
    ] = None
    reasoning_effort: Annotated[str | None, Meta(description="the template's variable of that name")] = None
    enable_thinking: Annotated[bool | None, Meta(description="the template's variable of that name")] = None
    documents: Annotated[
        list[dict[str, Any]] | None, Meta(description="texts for a template that shows some, as its variable documents")
    ] = None
    include_reasoning: Annotated[bool | None, Meta(description="false: reasoning is left out of the answer")] = None
    add_generation_prompt: Annotated[bool | None, Meta(description="the prompt ends where an answer begins")] = None
    continue_final_message: Annotated[bool | None, Meta(description="the answer goes on with the last message")] = None
    modalities: Annotated[
        list[str] | None, Meta(description='only ["text"]', extra_json_schema={"enum": [["text"], None]})
    ] = None
    verbosity: Annotated[str | None, Meta(description="ignored")] = None
    prediction: Annotated[dict[str, Any] | None, Meta(description="ignored: speculation guesses by itself")] = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as requests of the engine, with all that reads its answers."""

    requests: list[Request]
    ready: Dialogue
    selection: Selection
    paths: Mapping[str, str]
    """Paths of the parameters that asked for logit processors, by the processors' names."""

    def reader(self, *, shows_reasoning: bool = True) -> Reader:
        """Return a reader of one answer's text."""
        return Reader(self.ready.parser(), self.selection, shows_reasoning=shows_reasoning)


def read(body: bytes, context: Context) -> ChatAnswer:
    """Return the answer for a body. Slow: renders the template and tokenizes. Raises ApiError."""
    given = decode(body, ChatRequest, context.ignored)
    found = conversation(given, context, len(body))
    answer = ChatAnswer(given, context, found)
    answer.paths = found.paths
    return answer


def conversation(given: ChatRequest, context: Context, size: int) -> Conversation:
    """Return the conversation of a body of ``size`` bytes. Slow: renders the template, tokenizes. Raises ApiError."""
    adapter = adapter_of(given, context)
    n = choices(given, context)
    note_unused(given, context)
    _check(given)
    selection = tools.select(given.tools, given.tool_choice, given.parallel_tool_calls)
    ready = dialogue(
        context,
        checked(given.messages),
        selection,
        structured.form(given),
        size=size,
        **_rendering(given),
    )
    wanted = longest(given)
    more: dict[str, Any] = {} if wanted is None else {"max_tokens": wanted}
    params = sampling(
        given,
        context,
        otherwise=ready.room,
        prompt=ready.prompt,
        logprobs=(given.top_logprobs or 0) if given.logprobs else None,
        processors=ready.processors,
        skip_special_tokens=ready.skip_special_tokens,
        **more,
    )
    made = requests(given, context, [ready.prompt.ids], params, adapter, n)
    return Conversation(made, ready, selection, {**ready.paths, **named_paths(given)})


def prompt_of(given: ChatRequest, context: Context, size: int) -> ChatPrompt:
    """Return the prompt alone, of a body of ``size`` bytes. Slow: renders the template. Raises ApiError."""
    selection = tools.select(given.tools, given.tool_choice, given.parallel_tool_calls)
    return rendered(context, checked(given.messages), selection, size=size, **_rendering(given))


def _rendering(given: ChatRequest) -> dict[str, Any]:
    """Return arguments of ``rendered``."""
    return {
        "add_generation_prompt": given.add_generation_prompt,
        "continue_final_message": given.continue_final_message,
        "variables": variables(
            given.chat_template_kwargs,
            reasoning_effort=given.reasoning_effort,
            enable_thinking=given.enable_thinking,
            documents=given.documents,
        ),
    }


def _check(given: ChatRequest) -> None:
    check_likely(given.top_logprobs)
    if given.top_logprobs is not None and not given.logprobs:
        raise invalid("top_logprobs", "top_logprobs: it needs logprobs: true")
    if given.modalities is not None and given.modalities != ["text"]:
        raise not_supported("modalities", 'the model writes texts: give ["text"]')
    if given.stream and given.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "log-probabilities of a prompt are not in a stream: give stream: false")
