"""SentencePiece vocabularies as a tokenizer.json: pieces, their scores and kinds, from a .model file or elsewhere.

SentencePiece's BPE joins, again and again, the two neighbours whose join is the piece with the highest score. The
``tokenizers`` library joins pairs by rank, so every way to make a piece of two becomes a pair, the best score first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""What a piece is (``sentencepiece_model.proto``, ``SentencePiece.Type``; other files have the same numbers)."""

SPACE = "\u2581"
MAX_LETTERS = 1 << 28  # that all beginnings of all pieces have; the largest vocabularies have a tenth
BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class SentencePieceVocab:
    """A vocabulary; ids are places in ``texts``."""

    texts: Sequence[str]
    scores: NDArray[Any]  # (pieces,) float32
    kinds: Sequence[int]
    unknown: str | None = None
    prefix: bool = True  # whether a text begins with a space that is not there
    stripping: frozenset[str] = frozenset()  # special ones that take the spaces behind them along

    def tokenizer_json(self) -> dict[str, Any]:
        """Return the document of a BPE vocabulary."""
        model = {
            "type": "BPE",
            "unk_token": self.unknown,
            "fuse_unk": True,
            "byte_fallback": self.has_bytes,
            "vocab": {text: number for number, text in enumerate(self.texts)},
            "merges": self.merges(),
        }
        return {
            "version": "1.0",
            "added_tokens": self.added_tokens(),
            "normalizer": self.normalizer(),
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": self.decoder(),
            "model": model,
        }

    @property
    def has_bytes(self) -> bool:
        """Whether there is a piece for every byte, for what has none of its own."""
        return sum(map(bool, map(BYTE_PIECE.fullmatch, self.texts))) >= 256

    def merges(self) -> list[list[str]]:
        """Return the pairs that make pieces, best score first; raises ValueError for pieces that are far too long."""
        if sum(len(text) ** 2 for text in self.texts) > MAX_LETTERS:
            raise ValueError("its pieces are too long")
        numbers = {
            text: number
            for number, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True))
            if kind in (NORMAL, USER_DEFINED)
        }
        found: list[tuple[float, int, int, str, str]] = []
        for text, number in numbers.items():
            score = -float(self.scores[number])
            for at in range(1, len(text)):
                left, right = text[:at], text[at:]
                if left in numbers and right in numbers:
                    found.append((score, numbers[left], numbers[right], left, right))
        found.sort(key=lambda pair: pair[:3])
        return [[left, right] for *_, left, right in found]

    def added_tokens(self) -> list[dict[str, Any]]:
        """Return what is found in a text before it is split: special tokens, and those that users defined."""
        special = (CONTROL, UNKNOWN)
        return [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": text in self.stripping,
                "normalized": False,
                "special": kind in special,
            }
            for number, (text, kind) in enumerate(zip(self.texts, self.kinds, strict=True))
            if text and (kind in special or kind == USER_DEFINED)
        ]

    def normalizer(self) -> dict[str, Any]:
        """Return what writes spaces as letters."""
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        first = [{"type": "Prepend", "prepend": SPACE}] if self.prefix else []
        return {"type": "Sequence", "normalizers": [*first, spaces]}

    def decoder(self) -> dict[str, Any]:
        """Return what undoes the normalizer and joins bytes."""
        parts: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if self.prefix:
            parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {"type": "Sequence", "decoders": parts}
