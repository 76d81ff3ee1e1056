"""Log-probabilities of tokens in OpenAI's and vLLM's forms."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

import msgspec

from infeng_core.api import Logprob, Tokenizer
from infeng_serve.protocol.token_bytes import token_bytes

LOWEST = -9999.0
"""Stands for minus infinity, which JSON lacks."""


class TopLogprob(msgspec.Struct, kw_only=True):
    """One of the most likely tokens."""

    token: str
    logprob: float
    bytes: list[int]
    """UTF-8 bytes; a token may be a part of a character."""


class TokenLogprob(msgspec.Struct, kw_only=True):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of all tokens of an answer, including reasoning, calls and the end token."""

    content: list[TokenLogprob]
    refusal: None = None


class LegacyLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities in the form of /v1/completions, with one item for each token."""

    text_offset: list[int]
    """Number of characters before the token."""
    token_logprobs: list[float | None]
    tokens: list[str]
    """A token that is part of a character is ``bytes:\\xe2\\x82``."""
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens, and the token itself."""


class PromptLogprob(msgspec.Struct, kw_only=True):
    """The log-probability of one candidate for a position."""

    logprob: float
    rank: int
    """1 for the most likely token."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By position, candidates by token id as text; null for the first token, which has no context."""


def chat(given: Iterable[Logprob], tokenizer: Tokenizer) -> list[TokenLogprob]:
    """Return log-probabilities in the form of chat."""
    found = []
    for one in given:
        token, spelled = _spelled(tokenizer, one.token)
        top = [(_spelled(tokenizer, id_), value) for id_, value in one.top]
        found.append(
            TokenLogprob(
                token=token,
                logprob=max(one.logprob, LOWEST),
                bytes=spelled,
                top_logprobs=[
                    TopLogprob(token=text, logprob=max(value, LOWEST), bytes=letters) for (text, letters), value in top
                ],
            )
        )
    return found


def prompt(given: Sequence[Logprob | None], tokenizer: Tokenizer) -> PromptLogprobs:
    """Return the log-probabilities of a prompt in vLLM's form."""
    return [None if one is None else _of_prompt(one, tokenizer) for one in given]


class Legacy:
    """Builds the form of /v1/completions incrementally."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        """Start at ``offset`` characters."""
        self._tokenizer = tokenizer
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, tokens: Sequence[int], given: Sequence[Logprob | None]) -> LegacyLogprobs:
        """Return the log-probabilities of the next tokens. given: None for a token without context."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token_bytes(self._tokenizer, token)))
        return LegacyLogprobs(
            text_offset=offsets,
            token_logprobs=[None if one is None else max(one.logprob, LOWEST) for one in given],
            tokens=[legacy_text(self._tokenizer, token) for token in tokens],
            top_logprobs=[None if one is None else self._top(one) for one in given],
        )

    def _top(self, one: Logprob) -> dict[str, float]:
        found: dict[str, float] = {}
        for token, value in (*one.top, (one.token, one.logprob)):
            text = legacy_text(self._tokenizer, token)
            found[text] = max(value, found.get(text, LOWEST))
        return found


def joined(parts: Sequence[LegacyLogprobs]) -> LegacyLogprobs:
    """Return the concatenation of parts."""
    return LegacyLogprobs(
        text_offset=[offset for part in parts for offset in part.text_offset],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        tokens=[token for part in parts for token in part.tokens],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
    )


def legacy_text(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token's text, or ``bytes:\xe2\x82`` if it is part of a character."""
    spelled = token_bytes(tokenizer, token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    spelled = token_bytes(tokenizer, token)
    return spelled.decode(errors="replace"), list(spelled)


def _of_prompt(one: Logprob, tokenizer: Tokenizer) -> dict[str, PromptLogprob]:
    ranks = {one.token: one.rank} | {token: rank for rank, (token, _) in enumerate(one.top, 1)}
    values = {**dict(one.top), one.token: one.logprob}
    return {
        str(token): PromptLogprob(
            logprob=max(value, LOWEST), rank=ranks[token], decoded_token=_spelled(tokenizer, token)[0]
        )
        for token, value in values.items()
    }
