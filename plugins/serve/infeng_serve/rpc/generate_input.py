"""Conversion of a GenerateRequest to requests of the engine, without I/O; runs on a thread, since it tokenizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as pb

from infeng_serve.protocol import structured
from infeng_serve.protocol.answer import Context
from infeng_serve.protocol.bounds import MOST_BIASES, MOST_CHARACTERS, MOST_ITEMS, check_length
from infeng_serve.protocol.completions import CompletionRequest
from infeng_serve.protocol.errors import invalid, not_supported
from infeng_serve.protocol.prompts import ids_of
from infeng_serve.protocol.requests import adapter_of, requests
from infeng_serve.protocol.sampling import choices, sampling
from infeng_serve.rpc.fields import given
from infeng_serve.rpc.generate_answer import GenerateAnswer

REQUEST = frozenset({"request_id", "tokenized", "text", "sampling_params", "stream", "data_parallel_rank"})

SAME = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "max_tokens", "min_tokens", "ignore_eos", "n", "seed", "logprobs", "prompt_logprobs", "skip_special_tokens",
    }
)  # fmt: skip
"""Fields with the same meaning as the HTTP parameter of the same name."""

CONSTRAINTS = {
    "json_schema": "json",
    "json_object": "json_object",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}
"""Constraints by their field, with their name in HTTP's ``structured_outputs``."""

TEXT_ONLY = frozenset({"spaces_between_special_tokens", "grammar_from_first_token"})
"""Accepted fields without effect: they concern text, or a constraint's beginning, which is always the first token."""

PARAMS = SAME | CONSTRAINTS.keys() | TEXT_ONLY | {"stop", "stop_token_ids", "logit_bias"}

LENGTHS = {
    "stop": MOST_ITEMS,
    "stop_token_ids": MOST_BIASES,
    "logit_bias": MOST_BIASES,
    **dict.fromkeys(("json_schema", "regex", "grammar"), 4 * MOST_CHARACTERS),
}
"""Bounds on lists and texts, checked before they are copied."""

TOKENIZED = frozenset({"original_text", "input_ids"})


def read(request: pb.GenerateRequest, model: str, context: Context) -> GenerateAnswer:
    """Return the answer for a request; raises ApiError that names the field.

    model: the name of the base model or of an adapter, "" for the base. Parameters that a request does not give are
    neutral: clients apply the model's recommended ones, which GetModelInfo returns.
    """
    fields = given(request, REQUEST)
    if fields.get("data_parallel_rank", 0) != 0:
        raise not_supported("data_parallel_rank", "there is rank 0 alone: leave it out")
    params = given(request.sampling_params, PARAMS, "sampling_params.")
    for name, most in LENGTHS.items():
        if name in params:
            check_length(params[name], most, f"sampling_params.{name}")
    context = replace(context, defaults={})
    body = CompletionRequest(prompt="", model=model or None, **_parameters(params))
    adapter = adapter_of(body, context)
    n = choices(body, context)
    ids = prompt_of(request, context)
    longest = context.context - len(ids) if body.max_tokens is None else body.max_tokens
    more: dict[str, Any] = {"max_tokens": max(1, longest) if body.max_tokens is None else longest}
    if body.logprobs is not None:
        more["logprobs"] = body.logprobs
    processors = structured.processors(constraint(request.sampling_params))
    sampled = sampling(body, context, otherwise=1, processors=processors, **more)
    made = requests(body, context, [ids], sampled, adapter, n)
    return GenerateAnswer(made, streams=request.stream, tokenizer=context.tokenizer)


def prompt_of(request: pb.GenerateRequest, context: Context) -> list[int]:
    """Return the ids of a prompt, given as text or ids; raises ApiError."""
    kind = request.WhichOneof("input")
    if kind == "text":
        [ids], _ = ids_of(request.text, context, "text")
        return ids
    if kind == "tokenized":
        return tokenized(request.tokenized, context)
    raise invalid("input", "input: give tokenized or text", "missing_required_parameter")


def tokenized(message: pb.TokenizedInput, context: Context) -> list[int]:
    """Return the ids of a prompt that the client tokenized; raises ApiError for no ids and for too many."""
    given(message, TOKENIZED, "tokenized.")
    if (tokens := len(message.input_ids)) >= context.context:
        why = f"tokenized.input_ids: there are {tokens}, and the context is {context.context} tokens: shorten it"
        raise invalid("tokenized.input_ids", why, "context_length_exceeded")
    if not message.input_ids:
        raise invalid("tokenized.input_ids", "tokenized.input_ids: it is empty", "missing_required_parameter")
    return list(message.input_ids)


def constraint(params: pb.SamplingParams) -> structured.Form | None:
    """Return the constraint on the answer, None without one; raises ApiError."""
    name = params.WhichOneof("constraint")
    if name is None or (name == "json_object" and not params.json_object):
        return None
    value = getattr(params, name)
    if name == "choice":
        check_length(value.choices, MOST_ITEMS, "sampling_params.choice.choices")
        value = list(value.choices)
    path = f"sampling_params.{name}"
    return structured.Form(path, structured.one(path, CONSTRAINTS[name], value))


def place(param: str, request: pb.GenerateRequest | pb.EmbedRequest) -> str:
    """Return the path in a request of the field that HTTP's errors call ``param``."""
    if param == "prompt":
        return "tokenized.input_ids" if request.HasField("tokenized") else "text"
    if param in ("grammar", "response_format"):  # the processor's name, for any constraint
        return f"sampling_params.{request.sampling_params.WhichOneof('constraint')}"
    if param == "model":
        return "metadata model"
    return f"sampling_params.{param}" if param in PARAMS else param


def _parameters(fields: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in fields.items() if name in SAME}
    found.setdefault("skip_special_tokens", False)  # stop strings are searched in the full text
    for name in ("stop", "stop_token_ids"):
        if name in fields:
            found[name] = list(fields[name])
    if "logit_bias" in fields:
        found["logit_bias"] = dict(fields["logit_bias"])
    return found
