"""The tokenizer ``hf``: ``tokenizer.json`` of Hugging Face through the ``tokenizers`` library."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infeng_core.api import ModelError, RequestError, model_file, read_bytes
from infeng_tokenizers.bytelevel import SPACE, byte_level
from infeng_tokenizers.detokenizer import StreamingDetokenizer
from infeng_tokenizers.document import MAX_ID, read_settings
from infeng_tokenizers.library import CHECK, open_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

    from infeng_core.api import EngineConfig

MAX_CHARACTERS = 1 << 22
"""Characters of one text: more than the longest contexts hold."""

LONG = 1024
"""Tokens from which on decoding releases the GIL: it takes the library a third of a millisecond."""

MAX_NORMALIZED = 1 << 28
"""Most characters of a decoded text, by the bound of ``growth``."""


class HfTokenizer:
    """``tokenizer.json`` through the ``tokenizers`` library, with ``tokenizer_config.json`` for the rest.

    A beginning-of-text token is added as ``add_bos_token`` says, or by default as the post-processor of
    ``tokenizer.json`` does.
    """

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        """Read the files; raises ModelError if ``tokenizer.json`` is missing or broken."""
        # The library reads this when it first encodes a list; the first engine of a process decides.
        os.environ.setdefault("RAYON_NUM_THREADS", str(config.tokenizer.threads))
        self._fast, self._growth = _load(model_file(directory, "tokenizer.json"))
        self._plain: Fast | None = None  # the same, with special tokens as text; made at its first use
        self._lock = threading.Lock()
        self._parse_special = config.tokenizer.parse_special
        settings = _settings(model_file(directory, "tokenizer_config.json"))
        self._add_bos: bool | None = settings.get("add_bos_token")
        self._bos = self._special_id(settings.get("bos_token"))
        self._eos = self._special_id(settings.get("eos_token"))
        added = self._fast.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = {token: entry.content for token, entry in added.items() if entry.special}
        self._is_byte_level = self._reads_byte_level()
        self._literal = (
            {}
            if not self._is_byte_level
            else {
                token: entry.content
                for token, entry in added.items()
                if not entry.special and byte_level(entry.content) not in (None, entry.content.encode())
            }
        )
        self._token_bytes: dict[int, bytes] = {}  # filled on demand
        self._texts: dict[int, str | None] = {}  # of single tokens, filled on demand
        self._bytes = frozenset(self._byte_tokens())
        self._puts_bos = bool(self._add_bos) or self._template_puts_bos()

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

    def encode(self, texts: Sequence[str], *, parse_special: bool | None = None) -> list[list[int]]:
        """Return the ids of each text; an empty text is the beginning-of-text token alone, or nothing without one.

        A beginning-of-text token that stands first in a text is not added a second time.
        """
        for text in texts:
            if len(text) > MAX_CHARACTERS or len(text) * self._growth > MAX_NORMALIZED:
                most = min(MAX_CHARACTERS, int(MAX_NORMALIZED / self._growth))
                raise RequestError(f"prompt of {len(text)} characters", f"at most {most} are encoded", "shorten it")
        fast = self._fast if (self._parse_special if parse_special is None else parse_special) else self._as_text()
        try:
            encodings = fast.encode_batch(list(texts), add_special_tokens=self._add_bos is not False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's panics are not Exceptions
            raise RequestError("prompt", f"the tokenizer failed on it: {error}", CHECK) from None
        found: list[list[int]] = [encoding.ids for encoding in encodings]
        bos = self._bos
        if self._puts_bos and bos is not None:
            found = [ids[1:] if ids[:2] == [bos, bos] else ids if ids[:1] == [bos] else [bos, *ids] for ids in found]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens`` without special tokens; ids outside the vocabulary have none.

        Added tokens keep their literal text even if it looks like letters of bytes, which the library would decode
        (deepseek-coder's "\u00fa").
        """
        if self._literal.keys().isdisjoint(tokens):
            return self._decoded(tokens)
        runs = groupby(tokens, lambda token: token in self._literal)
        return "".join(
            "".join(self._literal[token] for token in run) if is_literal else self._decoded(list(run))
            for is_literal, run in runs
        )

    def _decoded(self, tokens: Sequence[int]) -> str:
        try:
            if len(tokens) < LONG:
                return self._fast.decode(list(tokens), skip_special_tokens=True)
            [text] = self._fast.decode_batch([list(tokens)], skip_special_tokens=True)  # releases the GIL
            return text
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # as above
            raise RequestError("answer", f"the tokenizer failed on its tokens: {error}", CHECK) from None

    def detokenizer(self, prompt: Sequence[int], *, skip_special_tokens: bool = True) -> StreamingDetokenizer:
        """Return a detokenizer of the tokens that follow ``prompt``."""
        return StreamingDetokenizer(self, prompt, skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token, of a special one as it is written; b"" for an unknown one."""
        known = self._token_bytes.get(token)
        if known is None:
            known = self._token_bytes[token] = self._bytes_of(token)
        return known

    def _bytes_of(self, token: int) -> bytes:
        piece = self._fast.id_to_token(token) if 0 <= token <= MAX_ID else None
        if piece is None:
            return b""
        if token in self._added:
            return piece.encode()
        if token in self._bytes:
            return bytes([int(piece[3:5], 16)])
        spelled = byte_level(piece) if self._is_byte_level else None
        return piece.replace("\u2581", " ").encode() if spelled is None else spelled

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The texts of special tokens, with their ids."""
        return {text: token for token, text in self._special.items()}

    def special_text(self, token: int) -> str:
        """Return how a special token is spelled; "" for any other."""
        return self._special.get(token, "")

    def text(self, token: int) -> str | None:
        """Return the text of ``token`` alone; None if decoding ignores it: special or unknown."""
        if token not in self._texts:
            is_visible = token not in self._special and self._fast.id_to_token(token) is not None
            self._texts[token] = self.decode([token]) if is_visible else None
        return self._texts[token]

    def is_byte(self, token: int) -> bool:
        """Return whether ``token`` is one raw byte of a run that only decodes as a whole (SentencePiece fallback)."""
        return token in self._bytes

    def _as_text(self) -> Fast:
        with self._lock:
            if self._plain is None:
                self._plain = copy.deepcopy(self._fast)
                self._plain.encode_special_tokens = True
            return self._plain

    def _template_puts_bos(self) -> bool:
        return self._bos is not None and self._add_bos is None and self._fast.encode("").ids[:1] == [self._bos]

    def _special_id(self, entry: Any) -> int | None:
        content = entry.get("content") if isinstance(entry, dict) else entry
        return self._fast.token_to_id(content) if isinstance(content, str) else None

    def _reads_byte_level(self) -> bool:
        space = self._fast.token_to_id(SPACE)
        return space is not None and self._fast.decode([space]) == " "

    def _byte_tokens(self) -> list[int]:
        literals = (f"<0x{byte:02X}>" for byte in range(256))
        tokens = [(self._fast.token_to_id(literal), literal) for literal in literals]
        return [token for token, literal in tokens if token is not None and self._fast.decode([token]) != literal]


def _load(path: Path) -> tuple[Fast, float]:
    """Return the library's tokenizer, and the most characters that it makes of one."""
    if not path.is_file():
        hint = " (tokenizer.model is not read)" if path.with_name("tokenizer.model").is_file() else ""
        remedy = "copy tokenizer.json from the model's page, or pass token ids (--ids, or tokenizer.use: ids)"
        raise ModelError(f"{path}", "it is no regular file" if path.exists() else f"the file is missing{hint}", remedy)
    fast, _, bounds = open_tokenizer(read_bytes(path), path)
    return fast, max(1.0, bounds["normalizer"] * bounds["pre_tokenizer"] * bounds["post_processor"])


def _settings(path: Path) -> dict[str, Any]:
    return read_settings(read_bytes(path), path) if path.is_file() else {}
