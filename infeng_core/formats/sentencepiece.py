"""SentencePiece's ``.model`` files as a tokenizer.json: strict reading of the few fields that decide on ids.

The file is one message of protocol buffers (``sentencepiece_model.proto``): pieces with score and kind, and what was
asked of the trainer and the normalizer. A message is fields, each a number and a value of one of four wire types.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from infeng_core.errors import ModelError
from infeng_core.formats.sentencepiece_vocab import BYTE, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceVocab

MAX_PIECES = 1 << 20
UNIGRAM, BPE = 1, 2
REMEDY = "download the file again, or use the model's tokenizer.json"
VARINT, FIXED64, MESSAGE, FIXED32 = 0, 1, 2, 5

Value = int | bytes


def tokenizer_json(data: bytes, path: Path) -> dict[str, Any]:
    """Return the document that gives the ids of the model in ``data``; raises ModelError naming ``path``."""
    try:
        return _Model(data, path).document()
    except (ValueError, struct.error, UnicodeDecodeError) as error:
        raise ModelError(f"{path}", f"is no SentencePiece model ({error})", REMEDY) from None


class _Model:
    def __init__(self, data: bytes, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []
        self.scores: list[float] = []
        self.kinds: list[int] = []
        trainer: dict[int, Value] = {}
        normalizer: dict[int, Value] = {}
        for field, value in fields(data):
            if field == 1:
                self._piece(dict(fields(_message(value))))
            elif field == 2:
                trainer = dict(fields(_message(value)))
            elif field == 3:
                normalizer = dict(fields(_message(value)))
        self.kind = _number(trainer.get(3, UNIGRAM))
        self.bytes_too = bool(trainer.get(35, 0))
        self.suffix = bool(trainer.get(24, 0))
        self.charsmap = _message(normalizer.get(2, b""))
        self.prefix, self.trims = bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1))
        self.escapes = bool(normalizer.get(5, 1))

    def document(self) -> dict[str, Any]:
        if not self.texts:
            self.fail("holds no piece")
        if len(set(self.texts)) != len(self.texts) or not np.isfinite(self.scores).all():
            self.fail("holds a piece twice, or a score that is not finite")
        if self.suffix or not self.escapes:
            self.fail("treats spaces in a way that is not known here")
        unknown = next((number for number, kind in enumerate(self.kinds) if kind == UNKNOWN), None)
        text = None if unknown is None else self.texts[unknown]
        if (self.trims or self.prefix) and USER_DEFINED in self.kinds:
            self.fail("adds or removes spaces beside pieces that users defined, which is not known here")
        scores = np.array(self.scores, np.float32)
        pieces = SentencePieceVocab(self.texts, scores, self.kinds, unknown=text, prefix=self.prefix)
        document = pieces.tokenizer_json() if self.kind == BPE else self._unigram(pieces, unknown)
        document["normalizer"]["normalizers"] = [*self._first(), *document["normalizer"]["normalizers"]]
        return document

    def _piece(self, found: dict[int, Value]) -> None:
        if len(self.texts) == MAX_PIECES:
            self.fail(f"holds more than {MAX_PIECES} pieces")
        self.texts.append(_message(found.get(1, b"")).decode("utf-8"))
        self.scores.append(struct.unpack("<f", struct.pack("<I", _number(found.get(2, 0))))[0])
        self.kinds.append(_number(found.get(3, NORMAL)))

    def _unigram(self, pieces: SentencePieceVocab, unknown: int | None) -> dict[str, Any]:
        if self.kind != UNIGRAM:
            self.fail(f"is of the kind {self.kind}; unigram and BPE are read")
        vocab = [[text, float(score)] for text, score in zip(self.texts, self.scores, strict=True)]
        model = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": BYTE in self.kinds}
        return {
            "version": "1.0",
            "added_tokens": pieces.added_tokens(),
            "normalizer": pieces.normalizer(),
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": pieces.decoder(),
            "model": model,
        }

    def _first(self) -> list[dict[str, Any]]:
        """Return what is done to a text before its spaces become letters."""
        found: list[dict[str, Any]] = []
        if self.charsmap:
            charsmap = base64.b64encode(self.charsmap).decode()
            found.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
        if self.trims:
            found.append({"type": "Strip", "strip_left": True, "strip_right": True})
            found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        return found

    def fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path}", why, REMEDY)


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field: numbers as int, messages and texts as bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = _varint(data, at) if wire == MESSAGE else ({FIXED32: 4, FIXED64: 8}.get(wire, -1), at)
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"a field of wire type {wire} at byte {at} reaches beyond the end")
        raw = data[at : at + length]
        at += length
        yield key >> 3, raw if wire == MESSAGE else int.from_bytes(raw, "little")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits in each byte, low ones first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has more than 64 bits")


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands where a message should")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise ValueError("a number is too large, or no number")
    return value
