"""The tokenizer ``ids``: a text is a list of decimal token ids, for models without a tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infeng_core.errors import RequestError

if TYPE_CHECKING:
    from infeng_core.settings.config import EngineConfig

LARGEST = 2**31 - 1


class IdsTokenizer:
    """``"1 2 3"`` or ``"1,2,3"`` is the prompt (1, 2, 3); nothing is added. An answer is a text of ids too."""

    vocab_size = LARGEST + 1
    bos_id = None
    eos_id = None

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        """Read no file."""

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        """Return the ids that each text spells; raises RequestError for anything else."""
        return [[_id(word) for word in re.split(r"[\s,]+", text.strip()) if word] for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return ids as ``encode`` reads them."""
        return " ".join(map(str, tokens))

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> IdsDetokenizer:
        """Return a detokenizer of the tokens that follow ``prompt``."""
        return IdsDetokenizer(first=not prompt)

    def token_bytes(self, token: int) -> bytes:
        """Return the id as it is written."""
        return str(token).encode()


class IdsDetokenizer:
    """Writes one token after the other."""

    def __init__(self, first: bool) -> None:
        """Start a text, or continue after a prompt."""
        self._space = "" if first else " "

    def push(self, token: int) -> str:
        """Return the next token's text."""
        text, self._space = f"{self._space}{token}", " "
        return text

    def finish(self) -> str:
        """Return "": no text is held back."""
        return ""


def _id(word: str) -> int:
    if word.isascii() and word.isdigit() and len(word) <= 10 and int(word) <= LARGEST:
        return int(word)
    raise RequestError("prompt", f"{word!r} is not a token id", 'give ids such as "1 2 3"')
