"""The letters that byte-level vocabularies (GPT-2 and after it) write bytes with."""

from __future__ import annotations

_PRINTED = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
"""Bytes that stand for themselves, as Latin-1; the others are, in their order, the letters from U+0100 on."""

_BYTES = {
    **{chr(byte): byte for byte in _PRINTED},
    **{chr(0x100 + index): byte for index, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))},
}

SPACE = "\u0120"


def byte_level(piece: str) -> bytes | None:
    """Return the bytes that a token of such a vocabulary is written for; None where it holds other letters."""
    try:
        return bytes(_BYTES[letter] for letter in piece)
    except KeyError:
        return None
