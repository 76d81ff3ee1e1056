"""The response of /v1/completions: one body, or frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from infeng_core.api import Completion, Event, Request
from infeng_serve.protocol import finish
from infeng_serve.protocol import logprobs as shapes
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.choice_answer import ChoiceAnswer
from infeng_serve.protocol.logprobs import Legacy, LegacyLogprobs, PromptLogprobs
from infeng_serve.protocol.usage import Usage

if TYPE_CHECKING:
    from infeng_serve.protocol.completions import CompletionRequest


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or in a stream a piece of one."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: finish.Reason | None = None
    stop_reason: finish.Cut | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The body of an answer, or in a stream of a frame."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | msgspec.UnsetType = msgspec.UNSET
    choices: list[CompletionChoice]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompts to repeat in the answer."""

    prompts: list[tuple[str, list[int]]]
    """Text and token ids of each prompt."""


class CompletionAnswer(ChoiceAnswer):
    """See ``Answer``."""

    _END = b'""'

    def __init__(
        self,
        given: CompletionRequest,
        context: Context,
        requests: Sequence[Request],
        n: int,
        echo: Echo | None,
        is_nothing_new: bool,
    ) -> None:
        """n: requests of each prompt. is_nothing_new: whether generated tokens are left out of the answer."""
        super().__init__(
            given,
            context,
            requests,
            prompt_tokens=sum(len(request.prompt) for request in requests[::n]),
            name="cmpl",
            object="text_completion",
            piece=b'"text":',
            n=n,
            counts_new=not is_nothing_new,
        )
        self._echo = echo
        self._is_nothing_new = is_nothing_new
        self._wants_prompt = given.prompt_logprobs is not None
        reports = given.logprobs is not None
        self._legacy = [self._legacy_of(choice) for choice in range(len(requests))] if reports else None

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming."""
        return msgspec.json.encode(
            CompletionResponse(
                id=self.name,
                created=self.context.created,
                model=self.model,
                system_fingerprint=self.fingerprint,
                choices=[self._choice(index, one) for index, one in enumerate(completions)],
                usage=self.usage(completions),
            )
        )

    def _choice(self, index: int, completion: Completion) -> CompletionChoice:
        text = "" if self._is_nothing_new else completion.text
        known = None
        if self._legacy is not None:
            parts = []
            if self._echo is not None:
                parts.append(Legacy(self.context.tokenizer).take(self._echoed(index)[1], completion.prompt_logprobs))
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
            choice.prompt_logprobs = shapes.prompt(completion.prompt_logprobs, self.context.tokenizer)
        return choice

    def _open(self) -> list[bytes]:
        if self._echo is None:
            return []
        texts = (self._echoed(choice)[0] for choice in range(len(self.requests)))
        return [self.frame(choice, msgspec.json.encode(text)) for choice, text in enumerate(texts)]

    def _piece(self, choice: int, event: Event) -> tuple[bytes | None, bytes | None]:
        if self._is_nothing_new:
            return None, None
        known = None
        if self._legacy is not None and event.token_ids:
            known = msgspec.json.encode(self._legacy[choice].take(event.token_ids, event.logprobs))
        return (msgspec.json.encode(event.text) if event.text or known is not None else None), known

    def _echoed(self, choice: int) -> tuple[str, list[int]]:
        assert self._echo is not None
        return self._echo.prompts[choice // self.n]

    def _legacy_of(self, choice: int) -> Legacy:
        legacy = Legacy(self.context.tokenizer)
        if self._echo is not None:
            ids = self._echoed(choice)[1]
            legacy.take(ids, [None] * len(ids))
        return legacy
