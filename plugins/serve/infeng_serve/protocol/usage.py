"""Tokens that a call took, as clients count them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from infeng_core.api import Completion, Tokenizer
from infeng_serve.protocol.spelling import token_bytes


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Of the prompt's tokens."""

    cached_tokens: int = 0
    """Computed for an earlier request, and not again."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Of the answers' tokens."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    """Guessed right by speculation."""
    rejected_prediction_tokens: int = 0
    """Guessed wrong, and not in the answer."""


class Usage(msgspec.Struct, kw_only=True):
    """Prompts count once, however many answers they have."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def of(completions: Sequence[Completion | None], n: int, prompt_tokens: int, reasoning: int = 0) -> Usage:
    """Return the usage of a call whose completions, None for what has none, are ``n`` for each prompt in turn."""
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
    """Return the usage of a call that goes on."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(),
        completion_tokens_details=CompletionTokensDetails(),
    )


def reasoning_tokens(reasoning: str, tokens: Sequence[int], tokenizer: Tokenizer) -> int:
    """Return how many tokens from an answer's first on hold no more than its reasoning, by the bytes of their texts."""
    if not reasoning:
        return 0
    ends = list(accumulate(len(token_bytes(tokenizer, token)) for token in tokens))
    return bisect_right(ends, len(reasoning.encode()))
