"""What /v1/chat/completions answers with: one body, or frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from infeng_chat.template import Delta, OutputParser, ToolDelta

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import logprobs as shapes
from infeng_serve.protocol import usage as counts
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.dialogue import Dialogue
from infeng_serve.protocol.frames import DONE, Frames
from infeng_serve.protocol.head import Head, Streaming
from infeng_serve.protocol.logprobs import ChatLogprobs, PromptLogprobs
from infeng_serve.protocol.tools import Selection
from infeng_serve.protocol.usage import Usage

if TYPE_CHECKING:
    from infeng_serve.protocol.chat import ChatRequest

FinishReason = Literal["stop", "length", "tool_calls"]


class CalledFunction(msgspec.Struct, kw_only=True):
    """What is called; arguments are JSON."""

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
    """Changes with what answers are computed with: versions, model, numerics."""
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class FunctionPiece(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of what is called."""

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
    """The body of a frame; the last one before the end may have no choices and the usage."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Reader:
    """Follows one answer through its parser."""

    def __init__(self, parser: OutputParser, selection: Selection, *, shows_reasoning: bool = True) -> None:
        """Follow ``parser``.

        selection: whether calls after the first are given out, and whether there can be anything but calls.
        shows_reasoning: whether reasoning is given out.
        """
        self._parser = parser
        self._selection = selection
        self._shows_reasoning = shows_reasoning
        self._reasoning: list[str] = []
        self.has_called = False

    def push(self, text: str, completion: Completion | None) -> list[Delta]:
        """Take more text; return what became certain, all of it with the completion.

        Where a call had to come and was cut off before its name was whole, what there is of it is no content.
        """
        found = self._parser.push(text) if text else []
        if completion is not None:
            is_cut = self._selection.must_call and completion.finish_reason != "stop"
            found = [*found, *(one for one in self._parser.finish() if not (is_cut and one.content))]
        if not self._selection.parallel:
            found = [one for one in found if one.tool is None or one.tool.index == 0]
        for one in found:
            if one.reasoning:
                self._reasoning.append(one.reasoning)
            if one.tool is not None:
                self.has_called = True
        return found if self._shows_reasoning else [replace(one, reasoning="") for one in found]

    def finish_reason(self, completion: Completion) -> FinishReason:
        """Return why the answer ended."""
        reason = finish.reason(completion)
        return "tool_calls" if reason == "stop" and self.has_called else reason

    def reasoning_tokens(self, completion: Completion, context: Context) -> int:
        """Return how many tokens were reasoning."""
        return counts.reasoning_tokens("".join(self._reasoning), completion.token_ids, context.tokenizer)


class ChatAnswer(Frames):
    """See ``Answer``."""

    def __init__(
        self, given: ChatRequest, context: Context, requests: Sequence[Request], ready: Dialogue, selection: Selection
    ) -> None:
        """Answer a conversation, once for each request."""
        super().__init__(context.own_id, len(requests))
        self.requests = requests
        self.streams = bool(given.stream)
        self.model = given.model or context.model
        self._name = f"chatcmpl-{context.id}"
        self._context = context
        self._parser = ready.parser
        self._selection = selection
        self._shows_reasoning = given.include_reasoning is not False
        self._wants_logprobs = bool(given.logprobs)
        self._wants_prompt = given.prompt_logprobs is not None
        self._prompt_tokens = len(ready.prompt.ids)
        self._head = Head(self._name, "chat.completion.chunk", context, self.model, b'"delta":')
        self._stream = Streaming.of(given.stream_options)
        self._readers: list[Reader] = []
        self._completions: list[Completion | None] = [None] * len(requests)
        self._given = 0  # tokens
        self._reasoning = 0  # tokens of ended answers

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response, where nothing was streamed."""
        readers = [self._reader() for _ in completions]
        chosen = [self._choice(index, *pair) for index, pair in enumerate(zip(completions, readers, strict=True))]
        reasoning = sum(
            reader.reasoning_tokens(one, self._context) for one, reader in zip(completions, readers, strict=True)
        )
        response = ChatResponse(
            id=self._name,
            created=self._context.created,
            model=self.model,
            system_fingerprint=self._context.fingerprint or msgspec.UNSET,
            choices=chosen,
            usage=counts.of(completions, len(completions), self._prompt_tokens, reasoning),
        )
        if self._wants_prompt:
            response.prompt_logprobs = shapes.prompt(completions[0].prompt_logprobs, self._context.tokenizer)
        return msgspec.json.encode(response)

    def _choice(self, index: int, completion: Completion, reader: Reader) -> ChatChoice:
        known = None
        if self._wants_logprobs:
            known = ChatLogprobs(content=shapes.chat(completion.logprobs, self._context.tokenizer))
        message = assembled(reader.push(completion.text, completion))
        return ChatChoice(
            index=index,
            message=message,
            logprobs=known,
            finish_reason=reader.finish_reason(completion),
            stop_reason=finish.cut(completion) or msgspec.UNSET,
        )

    # ------------------------------------------------------------------------------------------------------ frames ---

    def _open(self) -> list[bytes]:
        self._readers = [self._reader() for _ in self.requests]
        role = b'{"role":"assistant","content":""}'
        usage = self._stream.usage(self._so_far)
        return [self._head.frame(choice, role, usage=usage) for choice in range(len(self.requests))]

    def _render(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        reader = self._readers[choice]
        completion = events[-1].completion if events else None
        self._given += sum([len(event.token_ids) for event in events])
        deltas = reader.push("".join([event.text for event in events]), completion)
        piece = piece_of(deltas)
        known = None
        if self._wants_logprobs and (reported := [one for event in events for one in event.logprobs]):
            known = msgspec.json.encode(ChatLogprobs(content=shapes.chat(reported, self._context.tokenizer)))
            piece = piece or b'{"content":""}'
        frames = []
        if piece is not None:
            frames.append(self._head.frame(choice, piece, known, usage=self._stream.usage(self._so_far)))
        if completion is not None:
            self._completions[choice] = completion
            self._reasoning += reader.reasoning_tokens(completion, self._context)
            reason = reader.finish_reason(completion)
            usage = self._stream.usage(self._so_far)
            frames.append(self._head.frame(choice, b"{}", None, reason, finish.cut(completion), usage))
        return frames

    def _close(self) -> list[bytes]:
        if not self._stream.includes:
            return [DONE]
        found = counts.of(self._completions, len(self._completions), self._prompt_tokens, self._reasoning)
        return [self._head.last(msgspec.json.encode(found)), DONE]

    def _so_far(self) -> Usage:
        return counts.so_far(self._prompt_tokens, self._given)

    def _reader(self) -> Reader:
        return Reader(self._parser(), self._selection, shows_reasoning=self._shows_reasoning)


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
    """Return deltas as the ``delta`` of one frame, as JSON; None where they say nothing."""
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
    """Return pieces of calls, those that follow each other in one call as one."""
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
