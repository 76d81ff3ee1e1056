"""The responses of /api/generate and /api/chat: one body, or lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from infeng_serve.api import ApiError
from infeng_serve.api.dialects import (
    ChatRequest,
    CompletionRequest,
    Context,
    Frames,
    Reader,
    TokenLogprob,
    finish_reason,
    token_logprobs,
)

from infeng_core.api import Completion, Event, Logprob, Request
from infeng_dialects.ollama import errors
from infeng_dialects.ollama.calls import Calls, OllamaToolCall

KIND = b"application/x-ndjson"


class OllamaMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer, or a piece of one, as a message."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[OllamaToolCall] | None = None


class OllamaResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of an answer, or a line of a stream; the last line has the counts. Durations are nanoseconds."""

    model: str
    created_at: str
    message: OllamaMessage | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: list[TokenLogprob] | None = None
    done: bool | None = None
    done_reason: Literal["stop", "length", "load"] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class Said(msgspec.Struct):
    """A piece of an answer."""

    content: str = ""
    thinking: str = ""
    calls: list[OllamaToolCall] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.content or self.thinking or self.calls)


class Lines(Frames):
    """See ``Answer``."""

    kind = KIND

    def __init__(
        self,
        asked: ChatRequest | CompletionRequest,
        context: Context,
        requests: Sequence[Request],
        *,
        name: str,
        reader: Reader | None,
        is_chat: bool,
    ) -> None:
        """name: of the model in the call. reader: None for a text without reasoning and calls."""
        super().__init__(asked, context, requests)
        self._name = name
        self._reader = reader
        self._is_chat = is_chat
        self._calls = Calls()
        self._reports = requests[0].params.logprobs is not None
        self._completion: Completion | None = None

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""
        [completion] = completions
        said = self._said(completion.text, completion)
        return msgspec.json.encode(self._response(said, completion.logprobs, completion))

    def idle(self) -> bytes:
        """Return nothing: a reader takes every line for JSON."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """Return the line that ends a begun stream with an error."""
        return errors.body(error) + b"\n"

    def _open(self) -> list[bytes]:
        return []

    def _render(self, choice: int, event: Event) -> list[bytes]:
        self._completion = event.completion
        said = self._said(event.text, event.completion)
        if said.is_empty and not (self._reports and event.logprobs):
            return []
        return [msgspec.json.encode(self._response(said, event.logprobs)) + b"\n"]

    def _close(self) -> list[bytes]:
        return [msgspec.json.encode(self._response(Said(), (), self._completion)) + b"\n"]

    def _said(self, text: str, completion: Completion | None) -> Said:
        if self._reader is None:
            return Said(text)
        deltas = self._reader.push(text, completion)
        calls = [call for one in deltas if one.tool is not None for call in self._calls.push(one.tool)]
        if completion is not None:
            calls += self._calls.end()
        return Said("".join(one.content for one in deltas), "".join(one.reasoning for one in deltas), calls)

    def _response(
        self, said: Said, logprobs: Sequence[Logprob], completion: Completion | None = None
    ) -> OllamaResponse:
        found = OllamaResponse(model=self._name, created_at=stamp(self.context), done=completion is not None)
        if self._is_chat:
            found.message = OllamaMessage(role="assistant", content=said.content, thinking=said.thinking or None,
                                          tool_calls=said.calls or None)  # fmt: skip
        else:
            found.response, found.thinking = said.content, said.thinking or None
        if self._reports and logprobs:
            found.logprobs = token_logprobs(logprobs, self.context.tokenizer)
        if completion is not None:
            for name, value in _counts(completion).items():
                setattr(found, name, value)
        return found


class Loaded:
    """The answer to a call without a prompt, with which clients load a model."""

    kind = KIND
    streams = False
    numbered = False
    paths: Mapping[str, str] = {}

    def __init__(self, name: str, context: Context, *, is_chat: bool) -> None:
        """name: of the model in the call."""
        self.requests: Sequence[Request] = ()
        found = OllamaResponse(model=name, created_at=stamp(context), done=True, done_reason="load")
        if is_chat:
            found.message = OllamaMessage(role="assistant", content="")
        else:
            found.response = ""
        self._found = found

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the response."""
        return msgspec.json.encode(self._found)

    def resume(self, last_id: str) -> None:
        """Do nothing: it is no stream."""

    def opening(self) -> bytes:
        """Return nothing: it is no stream."""
        return b""

    def frames(self, choice: int, events: Sequence[Event]) -> bytes:
        """Return nothing: it is no stream."""
        return b""

    def closing(self) -> bytes:
        """Return nothing: it is no stream."""
        return b""

    def idle(self) -> bytes:
        """Return nothing: it is no stream."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """Return the error."""
        return errors.body(error)


def stamp(context: Context) -> str:
    """Return when a call was made, as RFC 3339 has it."""
    return datetime.fromtimestamp(context.created, UTC).isoformat().replace("+00:00", "Z")


def _counts(completion: Completion) -> dict[str, Any]:
    """Return the fields of a last line."""
    timings, usage = completion.timings, completion.usage
    return {
        "done_reason": finish_reason(completion),
        "total_duration": _nanoseconds(timings.total),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(timings.first_token - timings.queued),
        "eval_count": usage.completion_tokens,
        "eval_duration": _nanoseconds(timings.total - timings.first_token),
    }


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
