"""The usage of a call in OpenAI's form."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from infeng_core.api import Completion, Tokenizer
from infeng_serve.protocol.token_bytes import token_bytes


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the prompt tokens."""

    cached_tokens: int = 0
    """Tokens found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the answers' tokens."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    """Speculative tokens that were accepted."""
    rejected_prediction_tokens: int = 0
    """Speculative tokens that were rejected; they are not in the answer."""


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a call; each prompt counts once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def of(completions: Sequence[Completion | None], n: int, prompt_tokens: int, reasoning: int = 0) -> Usage:
    """Return the usage of a call. completions: ``n`` for each prompt in turn, None for one without completion."""
    ended = [one.usage for one in completions if one is not None]
    first = [one.usage for one in completions[::n] if one is not None]
    answered = sum(one.completion_tokens for one in ended)
    accepted = sum(one.accepted_tokens for one in ended)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=answered,
        total_tokens=prompt_tokens + answered,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(one.cached_tokens for one in first)),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=reasoning,
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=sum(one.drafted_tokens for one in ended) - accepted,
        ),
    )


def so_far(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Return the usage of an unfinished call."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(),
        completion_tokens_details=CompletionTokensDetails(),
    )


def reasoning_tokens(reasoning: str, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """Return how many of an answer's first tokens belong to its reasoning, by comparing bytes."""
    if not reasoning:
        return 0
    ends = list(accumulate(len(token_bytes(tokenizer, token)) for token in tokens))
    return bisect_right(ends, len(reasoning.encode()))
