"""Bytes of single tokens."""

from __future__ import annotations

from infeng_core.api import Tokenizer


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return a token's bytes; if the tokenizer does not know them, the bytes of its text."""
    spelled = getattr(tokenizer, "token_bytes", None)
    known: bytes = tokenizer.decode([token]).encode() if spelled is None else spelled(token)
    return known
