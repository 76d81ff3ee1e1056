"""The interface of a tokenizer: text to ids and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig


class Detokenizer(Protocol):
    """Turns one request's new tokens into text, piece by piece."""

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain, often "" within a character."""

    def finish(self) -> str:
        """Return the text held back; no token follows."""


class Tokenizer(Protocol):
    """Text to ids and back. Factories are registered by name through the hook ``infeng_tokenizers``.

    A tokenizer with a method ``token_bytes(token: int) -> bytes``, as that of the wheel infeng-tokenizers has, gives a
    server's clients the bytes of tokens that are parts of a character, or special.
    """

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-text token, if there is one."""

    @property
    def eos_id(self) -> int | None:
        """The end-of-text token, if there is one."""

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        """Return the ids of each text, with the special tokens that the model expects around a text.

        parse_special: whether special tokens in a text become their ids or stay plain text; the default is
        ``tokenizer.parse_special``. Raises RequestError for a text that cannot be encoded.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` without special tokens."""

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a detokenizer of the tokens that follow ``prompt``.

        skip_special_tokens: whether special tokens have no text. It is only passed if it is false.
        """


TokenizerFactory = Callable[[Path, "EngineConfig"], Tokenizer]
"""Takes the folder of the model's tokenizer files."""
