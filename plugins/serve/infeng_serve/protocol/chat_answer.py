"""The response of /v1/chat/completions: one body, or frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from infeng_chat.template import Delta, ToolDelta

from infeng_core.api import Completion, Event, Logprob
from infeng_serve.protocol import finish
from infeng_serve.protocol import logprobs as shapes
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.answer_reader import FinishReason
from infeng_serve.protocol.choice_answer import ChoiceAnswer
from infeng_serve.protocol.logprobs import ChatLogprobs, PromptLogprobs
from infeng_serve.protocol.usage import Usage

if TYPE_CHECKING:
    from infeng_serve.protocol.chat import ChatRequest, Conversation


class CalledFunction(msgspec.Struct, kw_only=True):
    """The called function; arguments are JSON."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, kw_only=True):
    """A call in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(msgspec.Struct, kw_only=True):
    """The answer as a message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The same."""
    tool_calls: list[CalledTool] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: finish.Cut | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """The body of an answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    """Identifies all that answers depend on: versions, model, numerics."""
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class FunctionPiece(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of a called function."""

    name: str | None = None
    arguments: str | msgspec.UnsetType = msgspec.UNSET


class ToolPiece(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of a call; the first has its id, type and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionPiece | None = None


class MessagePiece(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of the answer."""

    role: Literal["assistant"] | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """The same."""
    content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolPiece] | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one answer."""

    index: int
    delta: MessagePiece
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: finish.Cut | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """The body of a frame; the last one may have the usage and no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ChatAnswer(ChoiceAnswer):
    """See ``Answer``."""

    _END = b"{}"

    def __init__(self, given: ChatRequest, context: Context, asked: Conversation) -> None:
        """Answer a conversation with a choice for each request."""
        super().__init__(
            given,
            context,
            asked.requests,
            prompt_tokens=len(asked.ready.prompt.ids),
            name="chatcmpl",
            object="chat.completion.chunk",
            piece=b'"delta":',
        )
        self._wants_logprobs = bool(given.logprobs)
        self._wants_prompt = given.prompt_logprobs is not None
        shows = given.include_reasoning is not False
        self._readers = [asked.reader(shows_reasoning=shows) for _ in asked.requests]

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""
        response = ChatResponse(
            id=self.name,
            created=self.context.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=[self._choice(index, one) for index, one in enumerate(completions)],
            usage=self.usage(completions),
        )
        if self._wants_prompt:
            response.prompt_logprobs = shapes.prompt(completions[0].prompt_logprobs, self.context.tokenizer)
        return msgspec.json.encode(response)

    def _choice(self, index: int, completion: Completion) -> ChatChoice:
        message = assembled(self._readers[index].push(completion.text, completion))
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self._logprobs(completion.logprobs) if self._wants_logprobs else None,
            finish_reason=self._reason(index, completion),
            stop_reason=finish.cut(completion) or msgspec.UNSET,
        )

    def _open(self) -> list[bytes]:
        role = b'{"role":"assistant","content":""}'
        return [self.frame(choice, role) for choice in range(len(self.requests))]

    def _piece(self, choice: int, event: Event) -> tuple[bytes | None, bytes | None]:
        piece = piece_of(self._readers[choice].push(event.text, event.completion))
        if not (self._wants_logprobs and event.logprobs):
            return piece, None
        return piece or b'{"content":""}', msgspec.json.encode(self._logprobs(event.logprobs))

    def _reason(self, choice: int, completion: Completion) -> FinishReason:
        reader = self._readers[choice]
        self._reasoning += reader.reasoning_tokens(completion, self.context)
        return reader.finish_reason(completion)

    def _logprobs(self, given: Sequence[Logprob]) -> ChatLogprobs:
        return ChatLogprobs(content=shapes.chat(given, self.context.tokenizer))


def assembled(deltas: Sequence[Delta]) -> AnswerMessage:
    """Return all deltas of an answer as its message."""
    content = "".join(one.content for one in deltas)
    reasoning = "".join(one.reasoning for one in deltas)
    calls: dict[int, CalledTool] = {}
    for tool in (one.tool for one in deltas if one.tool is not None):
        call = calls.get(tool.index)
        if call is None:
            call = calls[tool.index] = CalledTool(
                id=tool.id or "", function=CalledFunction(name=tool.name or "", arguments="")
            )
        call.function.arguments += tool.arguments
    message = AnswerMessage(content=content if content or not calls else None)
    if reasoning:
        message.reasoning_content = message.reasoning = reasoning
    if calls:
        message.tool_calls = list(calls.values())
    return message


def piece_of(deltas: Sequence[Delta]) -> bytes | None:
    """Return deltas as the ``delta`` of one frame, as JSON; None if they are empty."""
    content = "".join([one.content for one in deltas])
    if content and len(deltas) == 1:  # nearly all
        return b'{"content":' + msgspec.json.encode(content) + b"}"
    piece = MessagePiece()
    if reasoning := "".join([one.reasoning for one in deltas]):
        piece.reasoning_content = piece.reasoning = reasoning
    if content:
        piece.content = content
    if tools := _merged([one.tool for one in deltas if one.tool is not None]):
        piece.tool_calls = tools
    found: Any = msgspec.json.encode(piece)
    return None if found == b"{}" else found


def _merged(given: Sequence[ToolDelta]) -> list[ToolPiece]:
    """Return pieces of calls, with consecutive pieces of one call merged."""
    found: list[ToolPiece] = []
    for tool in given:
        if tool.id is None and found and found[-1].index == tool.index:
            function = found[-1].function
            assert function is not None and isinstance(function.arguments, str)
            function.arguments += tool.arguments
        elif tool.id is None:
            found.append(ToolPiece(index=tool.index, function=FunctionPiece(arguments=tool.arguments)))
        else:
            function = FunctionPiece(name=tool.name, arguments=tool.arguments)
            found.append(ToolPiece(index=tool.index, id=tool.id, type="function", function=function))
    return found
