"""The response of /v1/messages: one body, or events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from infeng_serve.api import ApiError
from infeng_serve.api.dialects import ChatRequest, Context, Conversation, Frames, stop_string
from msgspec import Meta

from infeng_core.api import Completion, Event
from infeng_dialects.anthropic import errors
from infeng_dialects.anthropic.blocks import Blocks

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, kw_only=True):
    """Tokens of the call."""

    input_tokens: Annotated[int, Meta(description="tokens of the prompt that were not in the cache")]
    cache_creation_input_tokens: Annotated[int, Meta(description="always 0: storing costs nothing")] = 0
    cache_read_input_tokens: Annotated[int, Meta(description="tokens of the prompt that were in the cache")] = 0
    output_tokens: int


class MessageResponse(msgspec.Struct, kw_only=True):
    """The body of an answer; in a stream, the first event carries it."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The data of an event; which fields there are depends on its type."""

    type: Annotated[str, Meta(description="message_start, content_block_start, content_block_delta ...")]
    message: MessageResponse | None = None
    index: int | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: MessageUsage | None = None


class MessageAnswer(Frames):
    """See ``Answer``."""

    def __init__(
        self,
        asked: ChatRequest,
        context: Context,
        found: Conversation,
        *,
        stops: Sequence[str],
        shows_thinking: bool,
    ) -> None:
        """stops: the call's stop sequences. shows_thinking: whether thinking blocks have their text."""
        super().__init__(asked, context, found.requests)
        self._prompt_tokens = len(found.ready.prompt.ids)
        self._reader = found.reader()
        self._blocks = Blocks(shows_thinking=shows_thinking)
        self._stops = stops
        self._completion: Completion | None = None

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""
        [completion] = completions
        self._blocks.push(self._reader.push(completion.text, completion))
        self._blocks.end()
        reason, sequence = self._reason(completion)
        return msgspec.json.encode(
            MessageResponse(
                id=f"msg_{self.context.id}",
                model=self.model,
                content=self._blocks.settle(),
                stop_reason=reason,
                stop_sequence=sequence,
                usage=_usage(completion),
            )
        )

    def idle(self) -> bytes:
        """Return the event that keeps a silent stream open."""
        return super().idle() if self.numbered else _event("ping", {})

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a begun stream with an error."""
        return b"event: error\ndata: " + errors.body(error) + b"\n\n"

    # ------------------------------------------------------------------------------------------------------ frames ---

    def _open(self) -> list[bytes]:
        usage = MessageUsage(input_tokens=self._prompt_tokens, output_tokens=0)
        message = MessageResponse(id=f"msg_{self.context.id}", model=self.model, usage=usage)
        return [_event("message_start", {"message": message})]

    def _render(self, choice: int, event: Event) -> list[bytes]:
        found = self._blocks.push(self._reader.push(event.text, event.completion))
        if event.completion is not None:
            self._completion = event.completion
            found += self._blocks.end()
        return [_event(name, said) for name, said in found]

    def _close(self) -> list[bytes]:
        assert self._completion is not None
        reason, sequence = self._reason(self._completion)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            _event("message_delta", {"delta": delta, "usage": _usage(self._completion)}),
            _event("message_stop", {}),
        ]

    def _reason(self, completion: Completion) -> tuple[StopReason, str | None]:
        """Return why the answer ended, and the stop sequence that ended it."""
        reason = self._reader.finish_reason(completion)
        if reason == "length":
            return "max_tokens", None
        if reason == "tool_calls":
            return "tool_use", None
        sequence = stop_string(completion, self._stops, self.context.tokenizer)
        return ("end_turn" if sequence is None else "stop_sequence"), sequence


def _usage(completion: Completion) -> MessageUsage:
    usage = completion.usage
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
    )


def _event(name: str, said: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **said}))
