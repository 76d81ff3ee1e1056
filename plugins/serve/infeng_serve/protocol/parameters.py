"""The parameters of all generating routes. docs/serving-requests.md prints the fields' descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infeng_core.api.servers import SAMPLING


def known(name: str) -> Meta:
    """Return the description and the valid values of one of the engine's sampling parameters."""
    row = SAMPLING[name]
    return Meta(description=_OTHERWISE.get(name, row.help), extra_json_schema={**row.bounds(), **_WIDER.get(name, {})})


_OTHERWISE = {
    "top_k": "the k most likely tokens; 0 or -1 keeps all",
    "seed": f"{SAMPLING['seed'].help}; choice i of n has seed + i",
}
_TEXT = {"minLength": 1}
_TEXTS = {"items": {"type": "string", **_TEXT}, "maxItems": 64}
_TOKENS = {"items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_WIDER: Mapping[str, Mapping[str, Any]] = {
    "top_k": {"minimum": -1},
    "seed": {"minimum": -(2**63)},
    "max_tokens": {"minimum": 0},
    "stop": {**_TEXT, **_TEXTS},
    "dry_sequence_breakers": _TEXTS,
    "stop_token_ids": _TOKENS,
    "allowed_token_ids": {**_TOKENS, "minItems": 1},
    "bad_words": {"items": {"type": "string", "pattern": r"\S"}, "maxItems": 1024},
    "logit_bias": {"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}},
}
"""Values that the server accepts beyond those of SamplingParams, in JSON Schema."""

MOST_PRIORITY = 2**31 - 1
PRIORITY = Meta(
    description="larger is more urgent, where the scheduler looks at it",
    extra_json_schema={"minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY},
)
MIROSTAT = Meta(
    description="0 alone, which is off: there is no mirostat; use min_p or top_n_sigma",
    extra_json_schema={"enum": [0, None]},
)
SECONDS: dict[str, Any] = {"exclusiveMinimum": 0}
LOGPROBS: dict[str, Any] = {"minimum": 0, "maximum": 256}
MOST_LIKELY = LOGPROBS["maximum"]
FORMS: dict[str, Any] = {"enum": ["text", "json_object", "json_schema"]}
REFUSED: dict[str, Any] = {"enum": [None]}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: Annotated[bool | None, Meta(description="a last chunk without choices tells the tokens used")] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="every chunk tells the tokens used so far, if include_usage is true")
    ] = None
    include_obfuscation: Annotated[bool | None, Meta(description="ignored: nothing is padded")] = None


class AdapterWeight(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of several adapters that are combined."""

    name: Annotated[str, Meta(description="as /v1/models lists it")]
    weight: Annotated[float, Meta(description="1 is as it was trained")] = 1.0


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A constraint on the answer; exactly one field is set."""

    json: Annotated[str | dict[str, Any] | bool | None, Meta(description="a JSON schema, or its text")] = None
    json_object: Annotated[bool | None, Meta(description="any JSON object")] = None
    regex: Annotated[str | None, Meta(description="a regular expression for the whole answer")] = None
    choice: Annotated[list[str] | None, Meta(description="one of these texts", extra_json_schema={"minItems": 1})] = (
        None
    )
    grammar: Annotated[str | None, Meta(description="a Lark grammar, or GBNF: rules written ::=")] = None


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema with its name."""

    name: Annotated[str | None, Meta(description="for the client's own use")] = None
    schema: Annotated[dict[str, Any] | bool | None, Meta(description="the JSON schema")] = None
    strict: Annotated[bool | None, Meta(description="ignored: answers always keep to the schema")] = None
    description: Annotated[str | None, Meta(description="for the client's own use")] = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer, as in OpenAI's API."""

    type: Annotated[str, Meta(description="text, json_object or json_schema", extra_json_schema=FORMS)]
    json_schema: Annotated[JsonSchema | None, Meta(description="with json_schema")] = None
    schema: Annotated[
        dict[str, Any] | bool | None,
        Meta(description="with json_object or json_schema: llama.cpp has it here"),
    ] = None


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of every generating route; null is the same as leaving a parameter out."""

    model: Annotated[str | None, Meta(description="the base model's name or an adapter's; the base if not given")] = (
        None
    )
    stream: Annotated[bool | None, Meta(description="frames as tokens come, by server-sent events")] = None

    temperature: Annotated[float | None, known("temperature")] = None
    top_p: Annotated[float | None, known("top_p")] = None
    top_k: Annotated[int | None, known("top_k")] = None
    min_p: Annotated[float | None, known("min_p")] = None
    typical_p: Annotated[float | None, known("typical_p")] = None
    top_n_sigma: Annotated[float | None, known("top_n_sigma")] = None
    xtc_probability: Annotated[float | None, known("xtc_probability")] = None
    xtc_threshold: Annotated[float | None, known("xtc_threshold")] = None
    dry_multiplier: Annotated[float | None, known("dry_multiplier")] = None
    dry_base: Annotated[float | None, known("dry_base")] = None
    dry_allowed_length: Annotated[int | None, known("dry_allowed_length")] = None
    dry_sequence_breakers: Annotated[list[str] | None, known("dry_sequence_breakers")] = None
    dry_penalty_last_n: Annotated[int | None, known("dry_penalty_last_n")] = None
    seed: Annotated[int | None, known("seed")] = None
    stop: Annotated[str | list[str] | None, known("stop")] = None
    stop_token_ids: Annotated[list[int] | None, known("stop_token_ids")] = None
    min_tokens: Annotated[int | None, known("min_tokens")] = None
    ignore_eos: Annotated[bool | None, known("ignore_eos")] = None
    presence_penalty: Annotated[float | None, known("presence_penalty")] = None
    frequency_penalty: Annotated[float | None, known("frequency_penalty")] = None
    repetition_penalty: Annotated[float | None, known("repetition_penalty")] = None
    logit_bias: Annotated[dict[int, float] | None, known("logit_bias")] = None
    allowed_token_ids: Annotated[list[int] | None, known("allowed_token_ids")] = None
    bad_words: Annotated[list[str] | None, known("bad_words")] = None
    mirostat: Annotated[int | None, MIROSTAT] = None
    mirostat_mode: Annotated[int | None, MIROSTAT] = None
    mirostat_tau: Annotated[float | None, Meta(description="ignored: there is no mirostat")] = None
    mirostat_eta: Annotated[float | None, Meta(description="ignored: there is no mirostat")] = None

    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="what the answer must be: json, json_object, regex, choice, grammar")
    ] = None
    guided_json: Annotated[
        str | dict[str, Any] | bool | None, Meta(description="vLLM's older name of structured_outputs.json")
    ] = None
    guided_regex: Annotated[str | None, Meta(description="vLLM's older name of structured_outputs.regex")] = None
    guided_choice: Annotated[
        list[str] | None,
        Meta(description="vLLM's older name of structured_outputs.choice", extra_json_schema={"minItems": 1}),
    ] = None
    guided_grammar: Annotated[str | None, Meta(description="vLLM's older name of structured_outputs.grammar")] = None
    json_schema: Annotated[
        str | dict[str, Any] | bool | None, Meta(description="llama.cpp's name of structured_outputs.json")
    ] = None
    response_schema: Annotated[
        str | dict[str, Any] | bool | None, Meta(description="another name of structured_outputs.json")
    ] = None
    grammar: Annotated[str | None, Meta(description="a grammar as of llama.cpp, in GBNF")] = None
    logit_processors: Annotated[
        dict[str, Any] | None,
        Meta(
            description="logit processors that the server offers, by name with their arguments, in their order",
            extra_json_schema={"maxProperties": 8},
        ),
    ] = None
    guided_decoding_backend: Annotated[str | None, Meta(description="ignored: there is one")] = None

    adapters: Annotated[
        list[AdapterWeight] | None, Meta(description="several adapters that answer together; model is the base then")
    ] = None
    priority: Annotated[int | None, PRIORITY] = None
    timeout: Annotated[
        float | None,
        Meta(description="seconds after which the answer ends with what there is", extra_json_schema=SECONDS),
    ] = None
    cache_salt: Annotated[
        str | None, Meta(description="only requests with the same share what is computed of equal beginnings")
    ] = None

    user: Annotated[str | None, Meta(description="ignored")] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="ignored")] = None
    store: Annotated[bool | None, Meta(description="ignored: nothing is stored")] = None
    service_tier: Annotated[str | None, Meta(description="ignored")] = None
    safety_identifier: Annotated[str | None, Meta(description="ignored")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="ignored: every prompt is looked up in the cache")] = None
    prompt_cache_retention: Annotated[str | None, Meta(description="ignored")] = None


class Choices(Common, kw_only=True, forbid_unknown_fields=True):
    """Further parameters of completions and chat."""

    n: Annotated[int | None, Meta(description="answers to each prompt", extra_json_schema={"minimum": 1})] = None
    max_tokens: Annotated[int | None, known("max_tokens")] = None
    max_completion_tokens: Annotated[
        int | None, Meta(description="the newer name of max_tokens", extra_json_schema={"minimum": 0})
    ] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="include_usage, continuous_usage_stats")] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="text, json_object, or json_schema with its schema")
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Meta(
            description="log-probabilities of the prompt's tokens, and of so many beside; not in a stream",
            extra_json_schema=LOGPROBS,
        ),
    ] = None


IGNORED = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "guided_decoding_backend", "verbosity", "prediction", "max_tool_calls",
    }
)  # fmt: skip
"""Parameters that clients send and that have no effect here."""
