"""The ways in which byte-level vocabularies split a text into words, by the patterns of the models' own
tokenizer.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA3 = _SHORT + "|" + _LETTERS + r"|\p{N}{1,3}" + _REST + _TAIL
QWEN2 = _SHORT + "|" + _LETTERS + r"|\p{N}" + _REST + _TAIL


@dataclass(frozen=True)
class Splitting:
    """A way to split: each of ``patterns`` splits the pieces that the previous one left.

    ``whole``: a word that is a token is not merged from letters.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False  # whether a text begins with BOS if the file does not say
    nfc: bool = False  # whether texts are normalized first

    def parts(self) -> dict[str, Any]:
        """Return ``normalizer`` and ``pre_tokenizer`` of a tokenizer.json."""
        splits: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [*splits, letters]}
        return {"normalizer": {"type": "NFC"} if self.nfc else None, "pre_tokenizer": pre_tokenizer}


LLAMA3_SPLITTING = Splitting((LLAMA3,), whole=True, bos=True)
QWEN2_SPLITTING = Splitting((QWEN2,), nfc=True)
