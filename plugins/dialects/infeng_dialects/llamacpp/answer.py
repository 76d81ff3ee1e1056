"""The response of /completion and /infill: one body, or events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from infeng_serve.api import ApiError
from infeng_serve.api.dialects import Completing as Asked
from infeng_serve.api.dialects import CompletionRequest, Context, Frames, stop_string, token_logprobs
from msgspec import Meta

from infeng_core.api import Completion, Event, Logprob
from infeng_dialects.llamacpp import errors

StopType = Literal["none", "eos", "limit", "word"]


class LlamaTimings(msgspec.Struct, kw_only=True):
    """Durations of an answer in milliseconds, and speeds."""

    prompt_n: Annotated[int, Meta(description="tokens of the prompt that were computed")]
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    cache_n: Annotated[int, Meta(description="tokens of the prompt that were in the cache")]


class LlamaCompletion(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of an answer, or in a stream of an event; the last one has the counts."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str | None = None
    tokens_predicted: int
    tokens_evaluated: int
    prompt: str | None = None
    has_new_line: bool | None = None
    truncated: bool | None = None
    stop_type: StopType | None = None
    stopping_word: str | None = None
    tokens_cached: int | None = None
    timings: LlamaTimings | None = None
    completion_probabilities: list[dict[str, Any]] | None = None


class LlamaAnswer(Frames):
    """See ``Answer``."""

    def __init__(self, asked: CompletionRequest, context: Context, found: Asked, *, shows_tokens: bool) -> None:
        """shows_tokens: whether tokens are in the answer."""
        super().__init__(asked, context, found.requests)
        self._texts = found.texts
        self._prompts = found.prompts
        self._shows_tokens = shows_tokens
        self._reports = asked.logprobs is not None
        self._stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
        self._sent = [0] * len(found.requests)

    def body(self, completions: Sequence[Completion]) -> bytes:
        """Return the whole response of a call without streaming: an object, or a list for several prompts."""
        found = [self._last(index, one, one.text, one.logprobs) for index, one in enumerate(completions)]
        return msgspec.json.encode(found[0] if len(found) == 1 else found)

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a begun stream with an error."""
        return b"error: " + errors.body(error) + b"\n\n"

    def _open(self) -> list[bytes]:
        return []

    def _render(self, choice: int, event: Event) -> list[bytes]:
        self._sent[choice] += len(event.token_ids)
        found = []
        if event.text or (self._reports and event.logprobs):
            piece = self._piece(choice, event.text, event.token_ids, event.logprobs)
            found.append(_frame(piece))
        if event.completion is not None:
            found.append(_frame(self._last(choice, event.completion, "", ())))
        return found

    def _close(self) -> list[bytes]:
        return []

    def _piece(self, index: int, text: str, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> LlamaCompletion:
        found = LlamaCompletion(
            index=index,
            content=text,
            tokens=list(tokens) if self._shows_tokens or self.streams else [],
            id_slot=-1,
            stop=False,
            tokens_predicted=self._sent[index],
            tokens_evaluated=len(self._prompts[index]),
        )
        if self._reports and logprobs:
            found.completion_probabilities = self._probabilities(logprobs)
        return found

    def _last(self, index: int, completion: Completion, text: str, logprobs: Sequence[Logprob]) -> LlamaCompletion:
        usage = completion.usage
        found = self._piece(index, text, completion.token_ids if text and self._shows_tokens else (), logprobs)
        word = stop_string(completion, self._stops, self.context.tokenizer)
        found.stop, found.model, found.truncated = True, self.model, False
        found.tokens_predicted = usage.completion_tokens
        found.prompt = self._prompt(index)
        found.has_new_line = "\n" in completion.text
        found.stop_type = "limit" if completion.finish_reason != "stop" else "eos" if word is None else "word"
        found.stopping_word = word or ""
        found.tokens_cached = usage.cached_tokens
        found.timings = timings(completion)
        return found

    def _prompt(self, index: int) -> str:
        text = self._texts[index]
        return self.context.tokenizer.decode(self._prompts[index]) if text is None else text

    def _probabilities(self, logprobs: Sequence[Logprob]) -> list[dict[str, Any]]:
        """Return the tokens with their ids, which OpenAI's form lacks."""
        found = []
        for one, shown in zip(logprobs, token_logprobs(logprobs, self.context.tokenizer), strict=True):
            entry = msgspec.to_builtins(shown)
            for (token, _), top in zip(one.top, entry["top_logprobs"], strict=False):
                top["id"] = token
            found.append({"id": one.token, **entry})
        return found


def timings(completion: Completion) -> LlamaTimings:
    """Return the durations of an answer."""
    known, usage = completion.timings, completion.usage
    prompt, predicted = 1000 * (known.first_token - known.queued), 1000 * (known.total - known.first_token)
    computed = usage.prompt_tokens - usage.cached_tokens
    return LlamaTimings(
        prompt_n=computed,
        prompt_ms=prompt,
        prompt_per_token_ms=prompt / max(1, computed),
        prompt_per_second=1000 * computed / max(prompt, 1e-3),
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted,
        predicted_per_token_ms=predicted / max(1, usage.completion_tokens),
        predicted_per_second=1000 * usage.completion_tokens / max(predicted, 1e-3),
        cache_n=usage.cached_tokens,
    )


def _frame(data: LlamaCompletion) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)
