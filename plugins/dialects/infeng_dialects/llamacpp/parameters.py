"""The bodies of llama.cpp's routes. docs/serving-requests.md prints the descriptions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from infeng_serve.api.dialects import (
    LOGPROBS,
    MESSAGES,
    MIROSTAT,
    PRIORITY,
    PROMPT_SCHEMA,
    SECONDS,
    CompletionRequest,
    Context,
    check_length,
    invalid,
    known,
    not_supported,
)
from msgspec import Meta

from infeng_dialects.parameters import LAST_N, least, only, repetition_penalty

_SLOT = Meta(description="ignored: the server finds what is cached")
_PROBS = Meta(description="log-probabilities of the tokens, and of so many likely ones", extra_json_schema=LOGPROBS)
_SIGMA = Meta(description="tokens within this many standard deviations of the best logit; -1 is off")


class Completing(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of /completion and /infill."""

    model: Annotated[str | None, Meta(description="the base model's name or an adapter's; the base if not given")] = (
        None
    )
    stream: Annotated[bool | None, Meta(description="events as tokens come")] = None
    n_predict: Annotated[int | None, least("most new tokens; -1: what the context has left", -1)] = None
    max_tokens: Annotated[int | None, least("the same", -1)] = None
    temperature: Annotated[float | None, known("temperature")] = None
    top_k: Annotated[int | None, known("top_k")] = None
    top_p: Annotated[float | None, known("top_p")] = None
    min_p: Annotated[float | None, known("min_p")] = None
    typical_p: Annotated[float | None, known("typical_p")] = None
    top_n_sigma: Annotated[float | None, _SIGMA] = None
    xtc_probability: Annotated[float | None, known("xtc_probability")] = None
    xtc_threshold: Annotated[float | None, known("xtc_threshold")] = None
    dry_multiplier: Annotated[float | None, known("dry_multiplier")] = None
    dry_base: Annotated[float | None, known("dry_base")] = None
    dry_allowed_length: Annotated[int | None, known("dry_allowed_length")] = None
    dry_penalty_last_n: Annotated[int | None, known("dry_penalty_last_n")] = None
    dry_sequence_breakers: Annotated[list[str] | None, known("dry_sequence_breakers")] = None
    repeat_penalty: Annotated[float | None, known("repetition_penalty")] = None
    repeat_last_n: Annotated[int | None, LAST_N] = None
    presence_penalty: Annotated[float | None, known("presence_penalty")] = None
    frequency_penalty: Annotated[float | None, known("frequency_penalty")] = None
    mirostat: Annotated[int | None, MIROSTAT] = None
    mirostat_tau: Annotated[float | None, Meta(description="ignored")] = None
    mirostat_eta: Annotated[float | None, Meta(description="ignored")] = None
    seed: Annotated[int | None, known("seed")] = None
    stop: Annotated[list[str] | None, known("stop")] = None
    ignore_eos: Annotated[bool | None, known("ignore_eos")] = None
    logit_bias: Annotated[
        list[Any] | dict[int, float] | None,
        Meta(description="pairs of a token id or text and a number, or false to forbid it"),
    ] = None
    grammar: Annotated[str | None, Meta(description="a grammar in GBNF")] = None
    json_schema: Annotated[dict[str, Any] | bool | None, Meta(description="a JSON schema of the text")] = None
    n_probs: Annotated[int | None, _PROBS] = None
    post_sampling_probs: Annotated[bool | None, only("only false: it is not done here", [False])] = None
    return_tokens: Annotated[bool | None, Meta(description="true: tokens are in the answer")] = None
    cache_prompt: Annotated[bool | None, _SLOT] = None
    id_slot: Annotated[int | None, _SLOT] = None
    n_cache_reuse: Annotated[int | None, _SLOT] = None
    n_keep: Annotated[int | None, Meta(description="ignored: nothing is cut from a prompt")] = None
    min_keep: Annotated[int | None, only("0 or 1 alone", [0, 1])] = None
    timings_per_token: Annotated[bool | None, Meta(description="ignored: the last event has timings")] = None
    return_progress: Annotated[bool | None, Meta(description="ignored")] = None
    cache_salt: Annotated[str | None, Meta(description="as in completions")] = None
    priority: Annotated[int | None, PRIORITY] = None
    timeout: Annotated[float | None, Meta(description="as in completions", extra_json_schema=SECONDS)] = None


_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_PROMPT = Meta(
    description="a text, token ids, texts and ids mixed, or a list of texts",
    extra_json_schema={
        "allOf": [
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _ID]}},
                ]
            }
        ]
    },
)


class LlamaCompletionRequest(Completing, kw_only=True, forbid_unknown_fields=True):
    """The body of /completion and /completions."""

    prompt: Annotated[str | list[Any], _PROMPT]


class ExtraFile(msgspec.Struct, kw_only=True):
    """Another file that the text may refer to."""

    filename: str = ""
    text: str


class InfillRequest(Completing, kw_only=True, forbid_unknown_fields=True):
    """The body of /infill."""

    input_prefix: Annotated[str, Meta(description="the text before what is filled in")]
    input_suffix: Annotated[str, Meta(description="the text after it")]
    input_extra: Annotated[list[ExtraFile] | None, Meta(description="other files")] = None
    prompt: Annotated[str | None, Meta(description="the beginning of what is filled in")] = None


class LlamaEmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /embedding and /embeddings."""

    model: str | None = None
    input: Annotated[str | list[Any] | None, Meta(description="a text, texts, token ids, or lists of them")] = None
    content: Annotated[str | list[Any] | None, Meta(description="the same by its older name")] = None
    encoding_format: Annotated[str | None, only("float alone", ["float"])] = None


class TemplateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /apply-template."""

    model: str | None = None
    messages: Annotated[list[Any], Meta(extra_json_schema=MESSAGES)]
    tools: Annotated[list[Any] | None, Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/Tool"}})] = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


SAME = (
    "model",
    "stream",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "ignore_eos",
    "grammar",
    "json_schema",
    "cache_salt",
    "priority",
    "timeout",
)
"""Parameters with the same name and meaning in completions."""


def asked_of(given: Completing, prompt: str | list[Any], context: Context) -> CompletionRequest:
    """Return the parameters of completions; raises ApiError."""
    asked = CompletionRequest(prompt=prompt)
    for name in SAME:
        setattr(asked, name, getattr(given, name))
    asked.stop = given.stop or None
    wanted = given.n_predict if given.n_predict is not None else given.max_tokens
    asked.max_tokens = context.context if wanted is None or wanted == -1 else wanted
    asked.seed = None if given.seed == -1 else given.seed
    asked.top_n_sigma = None if given.top_n_sigma == -1 else given.top_n_sigma
    asked.logprobs = given.n_probs or None
    asked.repetition_penalty = repetition_penalty(given.repeat_penalty, given.repeat_last_n, "repeat_last_n")
    asked.logit_bias = _biases(given.logit_bias, context)
    if given.post_sampling_probs:
        raise not_supported("post_sampling_probs", "probabilities are those before sampling: leave it out")
    if given.min_keep not in (None, 0, 1):
        raise not_supported("min_keep", "a filter may leave one token: leave it out")
    return asked


def _biases(given: list[Any] | dict[int, float] | None, context: Context) -> dict[int, float] | None:
    """Return ``logit_bias`` by token ids; texts are biased by each of their tokens, as llama.cpp does."""
    if given is None or isinstance(given, dict):
        return given
    found: dict[int, float] = {}
    for index, pair in enumerate(given):
        path = f"logit_bias[{index}]"
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], int | float):
            raise invalid(path, f"{path}: it is no pair of a token and a number", "invalid_type")
        bias = FORBIDDEN if pair[1] is False else float(pair[1])
        if isinstance(pair[0], str):
            check_length(pair[0], MOST_BIASED, f"{path}[0]")
            context.check()
            ids = context.tokenizer.encode([pair[0]], parse_special=False)[0]
            found |= dict.fromkeys(ids[1:] if ids[:1] == [context.tokenizer.bos_id] else ids, bias)
        elif isinstance(pair[0], int) and not isinstance(pair[0], bool):
            found[pair[0]] = bias
        else:
            raise invalid(path, f"{path}: {str(pair[0])[:64]} is no token", "invalid_type")
    return found


MOST_BIASED = 64
"""Most characters of a text in ``logit_bias``."""

FORBIDDEN = -1e9
"""The bias of a token that must not come."""

TEXTS: dict[str, Any] = {
    "anyOf": [{"required": [name], "properties": {name: PROMPT_SCHEMA}} for name in ("input", "content")]
}
"""JSON Schema of the rule that embeddings need texts."""
