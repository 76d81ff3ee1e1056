"""The response of /v1/responses: one body, or events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import logprobs as shapes
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.answer_reader import Reader
from infeng_serve.protocol.dialogue import Dialogue
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.frames import Frames
from infeng_serve.protocol.logprobs import TokenLogprob
from infeng_serve.protocol.response_items import (
    Item,
    ItemEvent,
    Items,
    OutputMessage,
    OutputText,
    ReasoningText,
)
from infeng_serve.protocol.tools import Selection

if TYPE_CHECKING:
    from infeng_serve.protocol.responses import ResponsesRequest, ResponseTool, ResponseToolChoice

UNNAMED = "answer"
"""Name of a schema without a name, since OpenAI's types require one."""

_TOOL: Mapping[str, Any] = {"type": "function", "parameters": None, "strict": None}
"""Default fields of a tool in a response."""

TEXT_DELTA = "response.output_text.delta"

State = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the input tokens."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0
    """Not counted."""


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the output tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Tokens that the response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "timeout"]


class Response(msgspec.Struct, kw_only=True):
    """The body of an answer; in a stream, the first and last events carry it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: State
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, Any]
    store: bool = False
    temperature: float
    text: dict[str, Any] | msgspec.Raw
    tool_choice: Any
    tools: list[Any] | msgspec.Raw
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    background: bool = False
    usage: ResponseUsage | msgspec.UnsetType = msgspec.UNSET
    user: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.Raw


class ResponseEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The data of an event; which fields there are depends on its type."""

    type: Annotated[str, Meta(description="response.created, response.output_text.delta, response.completed ...")]
    sequence_number: int
    response: Response | None = None
    output_index: int | None = None
    item: Item | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[TokenLogprob] | None = None
    name: str | None = None
    arguments: str | None = None


class ResponseAnswer(Frames):
    """See ``Answer``."""

    def __init__(
        self,
        given: ResponsesRequest,
        context: Context,
        requests: Sequence[Request],
        ready: Dialogue,
        selection: Selection,
    ) -> None:
        """Answer a conversation."""
        super().__init__(given, context, requests)
        self._given = given
        self._sequence = 0
        self._reader = Reader(ready.parser(), selection)
        self._items = Items(context.id)
        # Several events repeat these: encode them once, here, where slow work and errors are allowed.
        self._text_options = _raw({"format": _format(given)}, "text")
        self._tool_choice = _raw(_choice(given.tool_choice), "tool_choice")
        self._tools = _raw([{**_TOOL, **tool} for tool in given.tools or ()], "tools")
        self._metadata = _raw(given.metadata or {}, "metadata")
        self._reports = requests[0].params.logprobs is not None
        self._pending: list[TokenLogprob] = []
        self._heads: dict[tuple[str, int], bytes] = {}  # constant beginnings of text frames by item
        self._completion: Completion | None = None

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""
        [completion] = completions
        items = self._items
        items.push(self._reader.push(completion.text, completion))
        items.finish(_status(completion))
        if len(items.items) == 1 and isinstance(
            items.items[0], OutputMessage
        ):  # with several items, log-probabilities cannot be assigned
            items.items[0].content[0].logprobs = shapes.chat(completion.logprobs, self.context.tokenizer)
        return msgspec.json.encode(self._ended(completion))

    # ------------------------------------------------------------------------------------------------------ frames ---

    def _open(self) -> list[bytes]:
        response = self._response("in_progress")
        return [self._frame("response.created", {"response": response}),
                self._frame("response.in_progress", {"response": response})]  # fmt: skip

    def _render(self, choice: int, event: Event) -> list[bytes]:
        completion = event.completion
        deltas = self._reader.push(event.text, completion)
        if len(deltas) == 1 and deltas[0].content and completion is None and not self._reports:  # nearly all
            place = self._items.say(deltas[0].content)
            if place is not None:
                return [self._text(place, deltas[0].content)]
        if event.logprobs:
            self._pending += shapes.chat(event.logprobs, self.context.tokenizer)
        found = self._items.push(deltas, self._pending)
        if any(name == TEXT_DELTA for name, _ in found):
            self._pending = []
        frames = [self._frame(name, said) for name, said in found]
        if completion is not None:
            self._completion = completion
            last: list[ItemEvent] = self._items.more_logprobs(self._pending)
            last += self._items.finish(_status(completion))
            frames += [self._frame(name, said) for name, said in last]
        return frames

    def _close(self) -> list[bytes]:
        assert self._completion is not None
        response = self._ended(self._completion)
        name = "completed" if response.status == "completed" else "incomplete"
        return [self._frame(f"response.{name}", {"response": response})]

    def failed(self, error: ApiError) -> bytes:
        """Return the frames that end a begun stream with an error."""
        response = self._response("failed")
        response.output = self._items.settle()
        code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.status, "server_error")
        response.error = ResponseError(code=code, message=error.message)
        return self._frame("response.failed", {"response": response})

    def _text(self, place: tuple[str, int], text: str) -> bytes:
        """Return the frame for a piece of a message's text."""
        head = self._heads.get(place)
        if head is None:
            where = {"item_id": place[0], "output_index": place[1], "content_index": 0, "logprobs": []}
            known = msgspec.json.encode({"type": TEXT_DELTA, **where})
            head = self._heads[place] = b'event: %b\ndata: %b,"delta":' % (TEXT_DELTA.encode(), known[:-1])
        sequence = self._sequence or 0
        self._sequence = sequence + 1
        return b'%b%b,"sequence_number":%d}\n\n' % (head, msgspec.json.encode(text), sequence)

    def _frame(self, name: str, said: dict[str, Any]) -> bytes:
        sequence = self._sequence or 0
        self._sequence = sequence + 1
        data = msgspec.json.encode({"type": name, **said, "sequence_number": sequence})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)

    # --------------------------------------------------------------------------------------------------- internals ---

    def _ended(self, completion: Completion) -> Response:
        cut = finish.cut(completion)
        response = self._response("cancelled" if cut == "cancelled" else _status(completion))
        if cut != "cancelled" and completion.finish_reason != "stop":
            response.incomplete_details = IncompleteDetails(reason=cut or "max_output_tokens")
        response.output = self._items.settle()
        usage = completion.usage
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self._reader.reasoning_tokens(completion, self.context)
            ),
            total_tokens=usage.total_tokens,
        )
        return response

    def _response(self, status: State) -> Response:
        given, params = self._given, self.requests[0].params
        return Response(
            id=f"resp_{self.context.id}",
            created_at=self.context.created,
            status=status,
            instructions=given.instructions,
            max_output_tokens=given.max_output_tokens,
            model=self.model,
            parallel_tool_calls=given.parallel_tool_calls is not False,
            reasoning={"effort": given.reasoning.effort if given.reasoning else None, "summary": None},
            temperature=params.temperature,
            text=self._text_options,
            tool_choice=self._tool_choice,
            tools=self._tools,
            top_logprobs=given.top_logprobs or 0,
            top_p=params.top_p,
            user=msgspec.UNSET if given.user is None else given.user,
            metadata=self._metadata,
        )


def _raw(value: Any, param: str) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except RecursionError:
        raise invalid(param, f"{param}: it is nested too deeply") from None


def _status(completion: Completion) -> Literal["completed", "incomplete"]:
    return "completed" if completion.finish_reason == "stop" else "incomplete"


def _choice(given: str | ResponseToolChoice | None) -> Any:
    """Return a choice of tools with the keys of OpenAI's types."""
    if given is None or isinstance(given, str):
        return given or "auto"
    if given.type == "function":
        return {"type": given.type, "name": given.name}
    return {"type": given.type, "mode": given.mode, "tools": [_named(tool) for tool in given.tools or ()]}


def _named(tool: ResponseTool) -> dict[str, str]:
    return {"type": tool.type, "name": tool.name}


def _format(given: ResponsesRequest) -> dict[str, Any]:
    form = given.text.format if given.text is not None else None
    if form is None:
        return {"type": "text"}
    known = {name: value for name, value in msgspec.structs.asdict(form).items() if value is not None}
    return {"name": UNNAMED, **known} if form.type == "json_schema" else known
