"""The bodies of Ollama's routes. docs/serving-requests.md prints the descriptions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from infeng_serve.api.dialects import LOGPROBS, MIROSTAT, known
from msgspec import Meta

from infeng_dialects.parameters import LAST_N, least, only

_PLACED = Meta(description="ignored: it places a model in memory")
_NOTHING: dict[str, Any] = {"enum": [None, []]}
_NAME = Meta(
    description="the base model's name or an adapter's, with or without :latest", extra_json_schema={"minLength": 1}
)
_LIKELY = Meta(description="so many likely tokens beside each", extra_json_schema=LOGPROBS)
_FORM = Meta(description='"json", or a JSON schema')


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of sampling; those that place a model in memory are ignored."""

    num_predict: Annotated[int | None, least("most new tokens; -1 and -2: what the context has left", -2)] = None
    temperature: Annotated[float | None, known("temperature")] = None
    top_k: Annotated[int | None, known("top_k")] = None
    top_p: Annotated[float | None, known("top_p")] = None
    min_p: Annotated[float | None, known("min_p")] = None
    typical_p: Annotated[float | None, known("typical_p")] = None
    seed: Annotated[int | None, known("seed")] = None
    stop: Annotated[str | list[str] | None, known("stop")] = None
    repeat_penalty: Annotated[float | None, known("repetition_penalty")] = None
    repeat_last_n: Annotated[int | None, LAST_N] = None
    presence_penalty: Annotated[float | None, known("presence_penalty")] = None
    frequency_penalty: Annotated[float | None, known("frequency_penalty")] = None
    mirostat: Annotated[int | None, MIROSTAT] = None
    mirostat_tau: Annotated[float | None, Meta(description="ignored")] = None
    mirostat_eta: Annotated[float | None, Meta(description="ignored")] = None
    tfs_z: Annotated[float | None, only("1 alone, which is off", [1])] = None
    num_ctx: Annotated[int | None, Meta(description="ignored: the server sets the context")] = None
    num_keep: Annotated[int | None, Meta(description="ignored: nothing is cut from a prompt")] = None
    penalize_newline: Annotated[bool | None, Meta(description="ignored")] = None
    num_batch: Annotated[int | None, _PLACED] = None
    num_gpu: Annotated[int | None, _PLACED] = None
    main_gpu: Annotated[int | None, _PLACED] = None
    num_thread: Annotated[int | None, _PLACED] = None
    numa: Annotated[bool | None, _PLACED] = None
    low_vram: Annotated[bool | None, _PLACED] = None
    f16_kv: Annotated[bool | None, _PLACED] = None
    logits_all: Annotated[bool | None, _PLACED] = None
    vocab_only: Annotated[bool | None, _PLACED] = None
    use_mmap: Annotated[bool | None, _PLACED] = None
    use_mlock: Annotated[bool | None, _PLACED] = None
    embedding_only: Annotated[bool | None, _PLACED] = None


class Generating(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of /api/generate and /api/chat."""

    model: Annotated[str, _NAME]
    stream: Annotated[bool | None, Meta(description="a line for each piece, unless false")] = None
    format: Annotated[str | dict[str, Any] | None, _FORM] = None
    options: Annotated[Options | None, Meta(description="parameters of sampling")] = None
    think: Annotated[
        bool | str | None, Meta(description="the template's variables enable_thinking, reasoning_effort")
    ] = None
    logprobs: Annotated[bool | None, Meta(description="log-probabilities of the answer's tokens")] = None
    top_logprobs: Annotated[int | None, _LIKELY] = None
    keep_alive: Annotated[float | str | None, Meta(description="ignored: the model stays loaded")] = None
    truncate: Annotated[bool | None, Meta(description="ignored: nothing is cut from a prompt")] = None
    shift: Annotated[bool | None, Meta(description="ignored: an answer ends with the context")] = None


class GenerateRequest(Generating, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/generate."""

    prompt: Annotated[str | None, Meta(description="a user's message; without one the model is said to be loaded")] = (
        None
    )
    system: Annotated[str | None, Meta(description="a system message before it")] = None
    raw: Annotated[bool | None, Meta(description="true: the prompt is completed without the template")] = None
    suffix: Annotated[str | None, Meta(description="the answer fills in before it, where the model can")] = None
    template: Annotated[
        str | None, Meta(description="refused: a call brings no template", extra_json_schema={"maxLength": 0})
    ] = None
    context: Annotated[
        list[int] | None, Meta(description="refused: give the conversation to /api/chat", extra_json_schema=_NOTHING)
    ] = None
    images: Annotated[
        list[Any] | None, Meta(description="refused: the model reads texts", extra_json_schema=_NOTHING)
    ] = None


class OllamaChatRequest(Generating, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/chat."""

    messages: Annotated[
        list[Any],
        Meta(
            description="the turns; without one the model is said to be loaded",
            extra_json_schema={"items": {"type": "object", "required": ["role"]}},
        ),
    ] = []
    tools: Annotated[
        list[Any] | None,
        Meta(
            description="functions that the model may call",
            extra_json_schema={"items": {"$ref": "#/components/schemas/Tool"}},
        ),
    ] = None


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/embed."""

    model: Annotated[str, _NAME]
    input: Annotated[str | list[str], Meta(description="a text, or several", extra_json_schema={"minItems": 1})]
    truncate: Annotated[bool | None, Meta(description="ignored: a text that is too long is an error")] = None
    dimensions: Annotated[
        int | None, Meta(description="only the model's own number", extra_json_schema={"minimum": 1})
    ] = None
    options: Annotated[dict[str, Any] | None, Meta(description="ignored")] = None
    keep_alive: Annotated[float | str | None, Meta(description="ignored")] = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/embeddings."""

    model: Annotated[str, _NAME]
    prompt: Annotated[str, Meta(description="a text")]
    options: Annotated[dict[str, Any] | None, Meta(description="ignored")] = None
    keep_alive: Annotated[float | str | None, Meta(description="ignored")] = None


class ShowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/show."""

    model: str | None = None
    name: Annotated[str | None, Meta(description="the older name of model")] = None
    verbose: Annotated[bool | None, Meta(description="ignored")] = None


NAMED: dict[str, Any] = {
    "anyOf": [
        {"required": [name], "properties": {name: {"type": "string", "minLength": 1}}} for name in ("model", "name")
    ]
}
"""JSON Schema of the rule that /api/show needs a name."""
