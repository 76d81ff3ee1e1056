"""The letters with which byte-level vocabularies (GPT-2 and later) write bytes."""

from __future__ import annotations

_PRINTED = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
"""Bytes written as themselves, in Latin-1; the others become, in order, the letters from U+0100 on."""

_BYTES = {
    **{chr(byte): byte for byte in _PRINTED},
    **{chr(0x100 + index): byte for index, byte in enumerate(sorted({*range(256)} - {*_PRINTED}))},
}

SPACE = "\u0120"


def byte_level(piece: str) -> bytes | None:
    """Return the bytes of a token of such a vocabulary; None if it has other letters."""
    try:
        return bytes(_BYTES[letter] for letter in piece)
    except KeyError:
        return None
