"""The parameters that all generating routes have. Each field's description is what docs/serving-requests.md prints."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells beside its text."""

    include_usage: Annotated[bool | None, Meta(description="a last chunk without choices tells the tokens used")] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="every chunk tells the tokens used so far, if include_usage is true")
    ] = None
    include_obfuscation: Annotated[bool | None, Meta(description="ignored: nothing is padded")] = None


class AdapterWeight(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One of the adapters that answer together."""

    name: Annotated[str, Meta(description="as /v1/models lists it")]
    weight: Annotated[float, Meta(description="1 is as it was trained")] = 1.0


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer must be; exactly one of them."""

    json: Annotated[str | dict[str, Any] | bool | None, Meta(description="a JSON schema, or its text")] = None
    json_object: Annotated[bool | None, Meta(description="any JSON object")] = None
    regex: Annotated[str | None, Meta(description="a regular expression for the whole answer")] = None
    choice: Annotated[list[str] | None, Meta(description="one of these texts")] = None
    grammar: Annotated[str | None, Meta(description="a Lark grammar, or GBNF: rules written ::=")] = None


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema with its name."""

    name: Annotated[str | None, Meta(description="for the client's own use")] = None
    schema: Annotated[dict[str, Any] | bool | None, Meta(description="the JSON schema")] = None
    strict: Annotated[bool | None, Meta(description="ignored: answers always keep to the schema")] = None
    description: Annotated[str | None, Meta(description="for the client's own use")] = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer, as OpenAI has it."""

    type: Annotated[str, Meta(description="text, json_object or json_schema")]
    json_schema: Annotated[JsonSchema | None, Meta(description="with json_schema")] = None


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of every generating route; null is as if it were not given."""

    model: Annotated[str | None, Meta(description="the base model's name or an adapter's; the base if not given")] = (
        None
    )
    stream: Annotated[bool | None, Meta(description="frames as tokens come, by server-sent events")] = None

    temperature: Annotated[float | None, Meta(description="0 is greedy; larger is more even")] = None
    top_p: Annotated[
        float | None, Meta(description="the fewest most likely tokens whose probabilities reach this sum")
    ] = None
    top_k: Annotated[int | None, Meta(description="the k most likely tokens; 0 or -1 keeps all")] = None
    min_p: Annotated[float | None, Meta(description="no tokens less likely than this share of the most likely one")] = (
        None
    )
    typical_p: Annotated[float | None, Meta(description="locally typical sampling; 1 keeps all")] = None
    top_n_sigma: Annotated[
        float | None, Meta(description="tokens within this many standard deviations of the best logit")
    ] = None
    xtc_probability: Annotated[float | None, Meta(description="how often XTC drops the most likely tokens")] = None
    xtc_threshold: Annotated[float | None, Meta(description="the probability from which XTC may drop a token")] = None
    dry_multiplier: Annotated[
        float | None, Meta(description="strength of DRY against repeated sequences; 0 is off")
    ] = None
    dry_base: Annotated[float | None, Meta(description="growth of DRY's penalty with a sequence's length")] = None
    dry_allowed_length: Annotated[int | None, Meta(description="longest sequence that DRY lets repeat")] = None
    dry_sequence_breakers: Annotated[list[str] | None, Meta(description="texts that end a sequence of DRY")] = None
    dry_penalty_last_n: Annotated[
        int | None, Meta(description="how many of the last tokens DRY searches; -1 is all")
    ] = None
    seed: Annotated[
        int | None,
        Meta(description="the same request with the same seed gives the same tokens; choice i of n has seed + i"),
    ] = None
    stop: Annotated[str | list[str] | None, Meta(description="the text ends before the first of these")] = None
    stop_token_ids: Annotated[list[int] | None, Meta(description="tokens that end the text")] = None
    min_tokens: Annotated[int | None, Meta(description="no end token before there are so many")] = None
    ignore_eos: Annotated[bool | None, Meta(description="go on past the model's end tokens")] = None
    presence_penalty: Annotated[float | None, Meta(description="against tokens that the answer has; -2 to 2")] = None
    frequency_penalty: Annotated[
        float | None, Meta(description="against tokens that the answer has, for each time; -2 to 2")
    ] = None
    repetition_penalty: Annotated[
        float | None, Meta(description="against tokens of prompt and answer; 1 changes none")
    ] = None
    logit_bias: Annotated[dict[int, float] | None, Meta(description="by token id, added to its logit")] = None
    allowed_token_ids: Annotated[list[int] | None, Meta(description="only these tokens are drawn")] = None
    bad_words: Annotated[
        list[str] | None, Meta(description="texts that the answer does not have, at a word's start or within")
    ] = None

    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="what the answer must be: json, json_object, regex, choice, grammar")
    ] = None
    guided_json: Annotated[
        str | dict[str, Any] | bool | None, Meta(description="vLLM's older name of structured_outputs.json")
    ] = None
    guided_regex: Annotated[str | None, Meta(description="vLLM's older name of structured_outputs.regex")] = None
    guided_choice: Annotated[list[str] | None, Meta(description="vLLM's older name of structured_outputs.choice")] = (
        None
    )
    guided_grammar: Annotated[str | None, Meta(description="vLLM's older name of structured_outputs.grammar")] = None
    guided_decoding_backend: Annotated[str | None, Meta(description="ignored: there is one")] = None

    adapters: Annotated[
        list[AdapterWeight] | None, Meta(description="several adapters that answer together; model is the base then")
    ] = None
    priority: Annotated[int | None, Meta(description="larger is more urgent, where the scheduler looks at it")] = None
    timeout: Annotated[float | None, Meta(description="seconds after which the answer ends with what there is")] = None
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
    """What completions and chat have beside."""

    n: Annotated[int | None, Meta(description="answers to each prompt")] = None
    max_tokens: Annotated[int | None, Meta(description="most new tokens")] = None
    max_completion_tokens: Annotated[int | None, Meta(description="the newer name of max_tokens")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="include_usage, continuous_usage_stats")] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="text, json_object, or json_schema with its schema")
    ] = None
    prompt_logprobs: Annotated[
        int | None, Meta(description="log-probabilities of the prompt's tokens, and of so many beside; not in a stream")
    ] = None


IGNORED = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "guided_decoding_backend", "verbosity", "prediction", "max_tool_calls",
    }
)  # fmt: skip
"""Parameters that clients send and that change nothing here."""
