"""/v1/completions: the request body and its conversion to requests of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from infeng_core.api import Request, SamplingParams
from infeng_serve.protocol import structured
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.completion_answer import CompletionAnswer, Echo
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.parameters import LOGPROBS, Choices
from infeng_serve.protocol.prompts import PROMPT_SCHEMA, ids_of, number
from infeng_serve.protocol.reading import decode
from infeng_serve.protocol.requests import adapter_of, check_number, requests
from infeng_serve.protocol.sampling import choices, longest, named_paths, note_unused, sampling

MAX_TOKENS = 16
"""Default of ``max_tokens``, as in OpenAI's API."""


class CompletionRequest(Choices, kw_only=True, forbid_unknown_fields=True):
    """The body of /v1/completions."""

    prompt: Annotated[
        str | list[Any],
        Meta(description="a text, texts, token ids, or lists of them", extra_json_schema=PROMPT_SCHEMA),
    ]
    best_of: Annotated[
        int | None, Meta(description="must be n: answers are not ranked", extra_json_schema={"minimum": 1})
    ] = None
    echo: Annotated[bool | None, Meta(description="the text begins with the prompt; with logprobs, those too")] = None
    logprobs: Annotated[
        int | None,
        Meta(
            description="log-probabilities of the tokens, and of so many likely ones beside", extra_json_schema=LOGPROBS
        ),
    ] = None
    suffix: Annotated[
        str | None, Meta(description="refused: nothing is filled in", extra_json_schema={"maxLength": 0})
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="false: no beginning-of-text token is put before a text")
    ] = None
    skip_special_tokens: Annotated[bool | None, Meta(description="special tokens are left out of the text")] = None


@dataclass(frozen=True, slots=True)
class Completing:
    """Prompts as requests of the engine."""

    requests: list[Request]
    """``n`` for each prompt in turn."""
    n: int
    prompts: list[list[int]]
    """The token ids of each prompt."""
    texts: list[str | None]
    """The text of each prompt, None for one of token ids."""
    is_nothing_new: bool
    """Whether the prompts are only scored: one token is generated and not returned."""
    paths: Mapping[str, str]
    """Paths of the parameters that asked for logit processors, by the processors' names."""


def read(body: bytes, context: Context) -> CompletionAnswer:
    """Return the answer for a body. Slow: tokenizes. Raises ApiError."""
    given = decode(body, CompletionRequest, context.ignored)
    found = completing(given, context)
    echo = None
    if given.echo:
        pairs = zip(found.prompts, found.texts, strict=True)
        echo = Echo([_echoed(ids, text, context) for ids, text in pairs])
    answer = CompletionAnswer(given, context, found.requests, found.n, echo, found.is_nothing_new)
    answer.paths = found.paths
    return answer


def completing(given: CompletionRequest, context: Context) -> Completing:
    """Return the requests of a body. Slow: tokenizes. Raises ApiError."""
    adapter = adapter_of(given, context)
    n = choices(given, context)
    note_unused(given, context)
    _check(given, n)
    wanted = longest(given)
    check_number(number(given.prompt), n)
    prompts, texts = ids_of(given.prompt, context, "prompt", is_whole=given.add_special_tokens is not False)
    is_nothing_new = wanted == 0 and bool(given.echo)
    more: dict[str, Any] = {"max_tokens": 1 if is_nothing_new else wanted} if wanted is not None else {}
    if given.echo and given.logprobs is not None and given.prompt_logprobs is None:
        more["prompt_logprobs"] = given.logprobs
    form = structured.form(given)
    processors = structured.processors(form)
    params: SamplingParams = sampling(
        given, context, otherwise=MAX_TOKENS, logprobs=given.logprobs, processors=processors, **more
    )
    made = requests(given, context, prompts, params, adapter, n)
    return Completing(made, n, prompts, texts, is_nothing_new, {**structured.paths(form), **named_paths(given)})


def _check(given: CompletionRequest, n: int) -> None:
    if given.best_of is not None and given.best_of != n:
        raise not_supported("best_of", f"answers are not ranked, so it can only be n, which is {n}")
    if given.suffix:
        raise not_supported("suffix", "nothing is filled in before a text: leave it out")
    if given.stream and (given.prompt_logprobs is not None or (given.echo and given.logprobs is not None)):
        raise invalid("prompt_logprobs" if given.prompt_logprobs is not None else "echo",
                      "log-probabilities of a prompt are not in a stream: give stream: false")  # fmt: skip


def _echoed(ids: list[int], text: str | None, context: Context) -> tuple[str, list[int]]:
    return (context.tokenizer.decode(ids) if text is None else text), ids
