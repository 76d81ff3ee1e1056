"""What /v1/completions answers with: one body, or frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import logprobs as shapes
from infeng_serve.protocol import usage as counts
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.frames import DONE, Frames
from infeng_serve.protocol.head import Head, Streaming
from infeng_serve.protocol.logprobs import Legacy, LegacyLogprobs, PromptLogprobs
from infeng_serve.protocol.usage import Usage

if TYPE_CHECKING:
    from infeng_serve.protocol.completions import CompletionRequest


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer; in a stream, a piece of one."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: finish.Reason | None = None
    stop_reason: finish.Cut | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The body of an answer; in a stream, of a frame."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    choices: list[CompletionChoice]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompts that are given back."""

    prompts: list[tuple[str, list[int]]]
    """Text and ids of each."""


class CompletionAnswer(Frames):
    """See ``Answer``."""

    def __init__(
        self,
        given: CompletionRequest,
        context: Context,
        requests: Sequence[Request],
        n: int,
        echo: Echo | None,
        is_nothing_new: bool,
    ) -> None:
        """n: requests of each prompt. is_nothing_new: whether the tokens that were made are left out."""
        super().__init__(context.own_id, len(requests))
        self.requests = requests
        self.streams = bool(given.stream)
        self.model = given.model or context.model
        self._name = f"cmpl-{context.id}"
        self._context = context
        self._n = n
        self._echo = echo
        self._is_nothing_new = is_nothing_new
        self._wants_prompt = given.prompt_logprobs is not None
        self._prompt_tokens = sum(len(request.prompt) for request in requests[::n])
        self._head = Head(self._name, "text_completion", context, self.model, b'"text":')
        self._stream = Streaming.of(given.stream_options)
        self._completions: list[Completion | None] = [None] * len(requests)
        self._given = [0] * len(requests)  # tokens
        reports = given.logprobs is not None
        self._legacy = [self._legacy_of(choice) for choice in range(len(requests))] if reports else None

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response, where nothing was streamed."""
        chosen = [self._choice(index, one) for index, one in enumerate(completions)]
        found = counts.of(completions, self._n, self._prompt_tokens)
        if self._is_nothing_new:
            found = counts.so_far(self._prompt_tokens, 0)
        return msgspec.json.encode(
            CompletionResponse(
                id=self._name,
                created=self._context.created,
                model=self.model,
                system_fingerprint=self._context.fingerprint or msgspec.UNSET,
                choices=chosen,
                usage=found,
            )
        )

    def _choice(self, index: int, completion: Completion) -> CompletionChoice:
        text = "" if self._is_nothing_new else completion.text
        known = None
        if self._legacy is not None:
            parts = []
            if self._echo is not None:
                parts.append(Legacy(self._context.tokenizer).take(self._echoed(index)[1], completion.prompt_logprobs))
            if not self._is_nothing_new:
                parts.append(self._legacy_of(index).take(completion.token_ids, completion.logprobs))
            known = shapes.joined(parts)
        if self._echo is not None:
            text = self._echoed(index)[0] + text
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=known,
            finish_reason=finish.reason(completion),
            stop_reason=finish.cut(completion) or msgspec.UNSET,
        )
        if self._wants_prompt:
            choice.prompt_logprobs = shapes.prompt(completion.prompt_logprobs, self._context.tokenizer)
        return choice

    # ------------------------------------------------------------------------------------------------------ frames ---

    def _open(self) -> list[bytes]:
        if self._echo is None:
            return []
        frames = []
        for choice in range(len(self.requests)):
            text = msgspec.json.encode(self._echoed(choice)[0])
            frames.append(self._head.frame(choice, text, usage=self._stream.usage(self._so_far)))
        return frames

    def _render(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        frames = []
        text = "".join([event.text for event in events])
        self._given[choice] += sum([len(event.token_ids) for event in events])
        known = None
        if self._legacy is not None and not self._is_nothing_new:
            tokens = [token for event in events for token in event.token_ids]
            if tokens:
                part = self._legacy[choice].take(tokens, [one for event in events for one in event.logprobs])
                known = msgspec.json.encode(part)
        if (text or known is not None) and not self._is_nothing_new:
            frame = self._head.frame(choice, msgspec.json.encode(text), known, usage=self._stream.usage(self._so_far))
            frames.append(frame)
        completion = events[-1].completion if events else None
        if completion is not None:
            self._completions[choice] = completion
            usage = self._stream.usage(self._so_far)
            ending = (finish.reason(completion), finish.cut(completion))
            frames.append(self._head.frame(choice, b'""', None, *ending, usage))
        return frames

    def _close(self) -> list[bytes]:
        if not self._stream.includes:
            return [DONE]
        found = counts.of(self._completions, self._n, self._prompt_tokens)
        if self._is_nothing_new:
            found = counts.so_far(self._prompt_tokens, 0)
        return [self._head.last(msgspec.json.encode(found)), DONE]

    def _so_far(self) -> Usage:
        return counts.so_far(self._prompt_tokens, 0 if self._is_nothing_new else sum(self._given))

    def _echoed(self, choice: int) -> tuple[str, list[int]]:
        assert self._echo is not None
        return self._echo.prompts[choice // self._n]

    def _legacy_of(self, choice: int) -> Legacy:
        legacy = Legacy(self._context.tokenizer)
        if self._echo is not None:
            ids = self._echoed(choice)[1]
            legacy.take(ids, [None] * len(ids))
        return legacy
