"""Text to ids and back: the tokenizer's face, the built-in one over Hugging Face files, streaming detokenization."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infeng_core.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

    from infeng_core.plug.manifest import EngineConfig

REPLACEMENT = "\ufffd"
"""What stands in a decoded text for bytes that are not, or not yet, a character."""

CONTEXT_TOKENS = 8
"""Tokens of the prompt that a completion's first token is decoded after."""


class Detokenizer(Protocol):
    """Turns one request's new tokens into text, piece by piece."""

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain, often "" within a character."""

    def finish(self) -> str:
        """Return what was held back; no token follows."""


class Tokenizer(Protocol):
    """Text to ids and back. Registered by name through the hook ``infeng_tokenizers``."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-text token, if there is one."""

    @property
    def eos_id(self) -> int | None:
        """The end-of-text token, if there is one."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, with the special tokens that the model expects around a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` without special tokens."""

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Return a detokenizer of the tokens that follow ``prompt``."""


TokenizerFactory = Callable[[Path, "EngineConfig"], Tokenizer]
"""Takes the folder that holds the model's tokenizer files."""


class HfTokenizer:
    """``tokenizer.json`` through the ``tokenizers`` library, ``tokenizer_config.json`` for what it leaves open.

    A beginning-of-text token is added as ``add_bos_token`` says, and where that is not given, as the post-processor of
    ``tokenizer.json`` does.
    """

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        """Read the files; raises ModelError where ``tokenizer.json`` is missing or broken."""
        # Read by the library when it first encodes a list; the first engine of a process decides.
        os.environ.setdefault("RAYON_NUM_THREADS", str(config.tokenizer.threads))
        self._fast = _load(directory)
        settings = _settings(directory)
        self._add_bos: bool | None = settings.get("add_bos_token")
        self._bos = self._special_id(settings.get("bos_token"))
        self._eos = self._special_id(settings.get("eos_token"))
        added = self._fast.get_added_tokens_decoder()
        self._hidden = frozenset(token for token, entry in added.items() if entry.special)
        self._texts: dict[int, str | None] = {}  # of single tokens, as they are needed
        self._bytes = frozenset(self._byte_tokens())

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._fast.get_vocab_size(with_added_tokens=True)

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-text token, if there is one."""
        return self._bos

    @property
    def eos_id(self) -> int | None:
        """The end-of-text token, if there is one."""
        return self._eos

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; an empty text is the beginning-of-text token alone, or nothing without one."""
        add_special = self._add_bos is not False
        encodings = self._fast.encode_batch(list(texts), add_special_tokens=add_special)
        found: list[list[int]] = [encoding.ids for encoding in encodings]
        if self._add_bos and self._bos is not None:
            found = [ids if ids[:1] == [self._bos] else [self._bos, *ids] for ids in found]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` without special tokens; ids outside the vocabulary have none."""
        return self._fast.decode(list(tokens), skip_special_tokens=True)

    def detokenizer(self, prompt: Sequence[int]) -> StreamingDetokenizer:
        """Return a detokenizer of the tokens that follow ``prompt``."""
        return StreamingDetokenizer(self, prompt)

    def text(self, token: int) -> str | None:
        """Return what ``token`` alone decodes to; None where it takes no part in decoding: special or unknown."""
        if token not in self._texts:
            is_visible = token not in self._hidden and self._fast.id_to_token(token) is not None
            self._texts[token] = self.decode([token]) if is_visible else None
        return self._texts[token]

    def is_byte(self, token: int) -> bool:
        """Return whether ``token`` is one raw byte of a run that only decodes as a whole (SentencePiece fallback)."""
        return token in self._bytes

    def _special_id(self, entry: Any) -> int | None:
        content = entry.get("content") if isinstance(entry, dict) else entry
        return self._fast.token_to_id(content) if isinstance(content, str) else None

    def _byte_tokens(self) -> list[int]:
        literals = (f"<0x{byte:02X}>" for byte in range(256))
        tokens = [(self._fast.token_to_id(literal), literal) for literal in literals]
        return [token for token, literal in tokens if token is not None and self._fast.decode([token]) != literal]


class StreamingDetokenizer:
    """Decodes a short window of tokens again with each new one, and gives out what the window's text gained.

    For a prompt P and new tokens T the pieces together are ``decode(P + T)`` without the part it shares with
    ``decode(P)``: a completion after "Once upon" starts with the space, one after the beginning of text does not.
    Nothing is given out while the text ends in a character that is not complete. A run of SentencePiece's byte tokens
    waits for its end, because ``decode`` turns the whole run into replacement characters if any part of it is broken.
    """

    def __init__(self, tokenizer: HfTokenizer, prompt: Sequence[int]) -> None:
        """Decode what follows ``prompt``."""
        self._tokenizer = tokenizer
        self._window = _safe_tail(tokenizer, prompt)  # only visible tokens: the rest does not take part
        self._given = len(self._window)  # tokens of the window whose text is out
        self._text = tokenizer.decode(self._window)  # their text

    def push(self, token: int) -> str:
        """Take the next token and return the text that is now certain."""
        tokenizer = self._tokenizer
        alone = tokenizer.text(token)
        if alone is None:
            return ""
        self._window.append(token)
        if tokenizer.is_byte(token):
            return ""
        text = tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT):
            return ""
        piece = text[_shared(text, self._text) :]
        # The newest tokens stay as the left context of the next ones: a decoder may treat a text's first token apart.
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._text = alone if self._given == 1 else tokenizer.decode(self._window)
        return piece

    def finish(self) -> str:
        """Return what was held back, with replacement characters for what never became a character."""
        text = self._tokenizer.decode(self._window)
        piece = text[_shared(text, self._text) :]
        self._text = text
        return piece


def _safe_tail(tokenizer: HfTokenizer, prompt: Sequence[int]) -> list[int]:
    """Return the last visible tokens of ``prompt``, starting where neither a character nor a byte run is cut."""
    tail: list[int] = []
    for token in reversed(prompt):
        if tokenizer.text(token) is not None:
            tail.insert(0, token)
            is_long = len(tail) >= CONTEXT_TOKENS
            if is_long and not tokenizer.is_byte(token) and not tokenizer.decode(tail).startswith(REPLACEMENT):
                break
    return tail


def _shared(text: str, before: str) -> int:
    """Return the length of what the two texts have in common at the start."""
    if text.startswith(before):
        return len(before)
    return next(i for i, pair in enumerate(zip_longest(text, before)) if pair[0] != pair[1])


def _load(directory: Path) -> Fast:
    from tokenizers import Tokenizer as Fast

    path = directory / "tokenizer.json"
    if not path.is_file():
        hint = " (tokenizer.model is not read)" if (directory / "tokenizer.model").is_file() else ""
        raise ModelError(
            str(path), f"the file is missing{hint}", "copy tokenizer.json from the model's page, or pass token ids"
        )
    try:
        fast = Fast.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for whatever it finds
        raise ModelError(str(path), f"not a tokenizer: {error}", "download the file again") from error
    fast.no_truncation()
    fast.no_padding()
    return fast


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(str(path), f"not JSON: {error}", "download the file again") from error
    if not isinstance(settings, dict):
        raise ModelError(str(path), "not a JSON object", "download the file again")
    return settings
