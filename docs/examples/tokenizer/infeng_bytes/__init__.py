"""A tokenizer: the bytes of UTF-8, as in ByT5. ``tokenizer: {use: bytes}``."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infeng_core.api import EngineConfig, hookimpl


class Bytes:
    """Byte b has the id ``first`` + b; ids below and above are no text."""

    bos_id = None
    eos_id = None

    def __init__(self, first: int) -> None:
        """Take the id of byte 0."""
        self._first = first

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._first + 256

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        """Return the ids of each text; there are no special tokens to parse."""
        return [[self._first + byte for byte in text.encode("utf-8")] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, with replacement characters for what is none."""
        return self.bytes(tokens).decode("utf-8", errors="replace")

    def bytes(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes that ``tokens`` are."""
        return bytes(token - self._first for token in tokens if 0 <= token - self._first < 256)

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a detokenizer of what follows ``prompt``; texts of whole characters do not depend on it."""
        return Detokenizer(self)

    def token_bytes(self, token: int) -> bytes:
        """Return the token's byte; b"" where it has none."""
        return self.bytes([token])


class Detokenizer:
    """Gives out whole characters."""

    def __init__(self, tokenizer: Bytes) -> None:
        """Start between two characters."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Take the next token; return the character that it completes, or ""."""
        return self._decoder.decode(self._tokenizer.bytes([token]))

    def finish(self) -> str:
        """Return what stands for a character that was begun."""
        return self._decoder.decode(b"", final=True)


@hookimpl
def infeng_tokenizers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer."""

    def make(directory: Path, config: EngineConfig) -> Bytes:
        return Bytes(settings["first"])

    return {"bytes": make}
