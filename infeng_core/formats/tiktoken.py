"""Tiktoken's files of ranks as a tokenizer.json: each line a token in base64, and its rank, which is its id.

Two neighbours are joined while their join is a token, the one of the lowest rank first: SentencePiece's rule with ranks
for scores. How texts are split, and which tokens are special, such a file does not say.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from infeng_core.errors import ModelError
from infeng_core.formats.sentencepiece_vocab import CONTROL, NORMAL, USER_DEFINED, SentencePieceVocab
from infeng_core.formats.splitting import LLAMA3_SPLITTING, QWEN2_SPLITTING

MAX_TOKENS = 1 << 20
BY_FAMILY = {"llama": LLAMA3_SPLITTING, "qwen2": QWEN2_SPLITTING, "qwen3": QWEN2_SPLITTING}
"""How the families whose makers publish such files split texts."""

REMEDY = "use the model's tokenizer.json"


def is_ranks(data: bytes) -> bool:
    """Return whether a file begins like one of ranks."""
    first = data[:512].split(b"\n", 1)[0].split(b" ")
    return len(first) == 2 and first[1].strip().isdigit()


def tokenizer_json(data: bytes, settings: Mapping[str, Any], family: str, path: Path) -> dict[str, Any]:
    """Return the document for ``data``. settings: of tokenizer_config.json, whose special tokens count.

    Raises ModelError naming ``path`` for a broken file, and for a family whose way of splitting texts is not known.
    """
    if family not in BY_FAMILY:
        _fail(path, f"how a {family} splits texts is not known here")
    splitting = BY_FAMILY[family]
    tokens = _read(data, path)
    added = _added(settings, path)
    size = max([len(tokens) - 1, *added]) + 1
    if size > MAX_TOKENS or any(number < len(tokens) for number in added):
        _fail(path, "and the added tokens of tokenizer_config.json do not fit each other")
    texts = [*tokens, *(f"[PAD{number}]" for number in range(len(tokens), size))]
    kinds = [NORMAL] * len(tokens) + [0] * (size - len(tokens))
    for number, (text, special) in added.items():
        texts[number], kinds[number] = text, CONTROL if special else USER_DEFINED
    if len(set(texts)) != size:
        _fail(path, "and the added tokens of tokenizer_config.json hold a token twice")
    pieces = SentencePieceVocab(texts, -np.arange(size, dtype=np.float32), kinds)
    model = {
        "type": "BPE",
        "ignore_merges": splitting.whole,
        "vocab": {text: number for number, text in enumerate(texts)},
        "merges": _merges(pieces, path),
    }
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": pieces.added_tokens(),
        **splitting.parts(),
        "post_processor": None,
        "decoder": letters,
        "model": model,
    }


def _merges(pieces: SentencePieceVocab, path: Path) -> list[list[str]]:
    try:
        return pieces.merges()
    except ValueError as error:
        _fail(path, f"cannot be used: {error}")


def _read(data: bytes, path: Path) -> list[str]:
    """Return the tokens in the letters of byte-level vocabularies, in the order of their ranks."""
    letters = byte_letters()
    tokens: list[str] = []
    for number, line in enumerate(data.splitlines()):
        if number == MAX_TOKENS:
            _fail(path, f"holds more than {MAX_TOKENS} tokens")
        try:
            word, rank = line.split()
            if int(rank) != number:
                raise ValueError
            tokens.append("".join(letters[byte] for byte in base64.b64decode(word, validate=True)))
        except (ValueError, binascii.Error):
            _fail(path, f"line {number + 1} is no token in base64 with the rank {number}")
    if len(set(tokens)) != len(tokens) or not {*letters} <= {*tokens}:
        _fail(path, "holds a token twice, or lacks one for some byte")
    return tokens


def _added(settings: Mapping[str, Any], path: Path) -> dict[int, tuple[str, bool]]:
    found: dict[int, tuple[str, bool]] = {}
    entries = settings.get("added_tokens_decoder")
    for number, entry in entries.items() if isinstance(entries, Mapping) else ():
        text = entry.get("content") if isinstance(entry, Mapping) else None
        if not (isinstance(text, str) and text and number.isascii() and number.isdigit() and len(number) < 10):
            _fail(path.with_name("tokenizer_config.json"), f"added_tokens_decoder.{number[:20]} is no token")
        found[int(number)] = text, bool(entry.get("special"))
    return found


def byte_letters() -> str:
    """Return the letter that stands for each byte: printed ones for themselves, the others from U+0100 on (GPT-2)."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printed else next(others)) for byte in range(256))


def _fail(path: Path, why: str) -> NoReturn:
    raise ModelError(f"{path}", why, REMEDY)
