"""Bounds on how much longer each part of a tokenizer.json makes a text: 40 replacements that double it would exhaust
memory.

The bounds are in characters (or ids) per character, for any text. Unicode's own normalizations are not counted:
however many are chained, they make at most 18 characters of one.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

MAX_GROWTH = 256
"""Published tokenizers stay below 40."""

UNICODE = 18
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def growth_bounds(document: Mapping[str, Any]) -> dict[str, float]:
    """Return the bound of each part of a tokenizer.json; parts that the library would refuse are ignored."""
    return {part: _growth(document.get(part)) for part in PARTS}


def _growth(part: Any) -> float:
    if not isinstance(part, Mapping):
        return 1.0
    match part.get("type"):
        case "Sequence":
            parts = [part.get(key) for key in ("normalizers", "pretokenizers", "processors", "decoders")]
            return math.prod(_growth(item) for items in parts if isinstance(items, list) for item in items)
        case "Replace":
            return _replaced(part.get("pattern"), _length(part.get("content")))
        case "Prepend":
            return 1.0 + _length(part.get("prepend"))
        case "Precompiled":
            longest = _longest(part.get("precompiled_charsmap"))
            return longest if longest > UNICODE else 1.0
        case "TemplateProcessing":
            return _template(part.get("single"), part.get("special_tokens"))
    return 1.0


def _replaced(pattern: Any, content: int) -> float:
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if isinstance(text, str) and text:
        return max(1.0, content / len(text))
    return 1.0 + content  # a regular expression may match nothing before every character


def _longest(charsmap: Any) -> int:
    """Return the bytes of the longest text after the trie (four bytes with its length come first); texts end in 0."""
    try:
        data = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    except (binascii.Error, ValueError):
        return 0
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(len(text) for text in texts.split(b"\0"))


def _template(pieces: Any, tokens: Any) -> float:
    """Return how often a template repeats its text, with the number of ids around it."""
    ids = {name: _length(token.get("ids")) for name, token in tokens.items()} if isinstance(tokens, Mapping) else {}
    total = 0
    for piece in pieces if isinstance(pieces, list) else ():
        special = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
        total += ids.get(special.get("id"), 0) if isinstance(special, Mapping) else 1
    return max(1.0, float(total))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list) else 0
