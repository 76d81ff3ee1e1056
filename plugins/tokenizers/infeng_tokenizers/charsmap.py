"""SentencePiece's table of normalizations: a trie over bytes, and the texts to which its leaves point.

Its layout: four bytes with the length of the trie, its units of four bytes, and texts that end in 0
(``darts_clone``'s double array, in ``normalizer.cc`` of SentencePiece). The ``tokenizers`` library follows both
without bounds checks.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.uint32]


def require_sound(charsmap: Any, where: str) -> None:
    """Raise ValueError naming ``where`` for a table, in base64, where a lookup could leave its bounds."""
    try:
        data = base64.b64decode(charsmap, validate=True) if isinstance(charsmap, str) else b""
    except (binascii.Error, ValueError):
        raise ValueError(f"{where} is not in base64") from None
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 4 or not 4 <= size <= len(data) - 4:
        raise ValueError(f"{where} is shorter than its trie")
    texts = data[4 + size :]
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where} holds texts that are not UTF-8") from None
    units: Units = np.frombuffer(data, "<u4", size // 4, 4)
    places = _leaves(units, where)
    begins = np.frombuffer(texts + b"\0", np.uint8)
    if places.size and (int(places.max()) > len(texts) or (begins[places] & 0xC0 == 0x80).any()):
        raise ValueError(f"{where} points to texts that are not there")


def _leaves(units: Units, where: str) -> Units:
    """Return the values of all reachable leaves; raises ValueError if a lookup could leave the trie."""
    letters = np.arange(1, 256, dtype=np.uint32)
    seen, now = np.zeros(len(units), np.bool_), _after(units[:1]).astype(np.uint32)
    values: list[Units] = []
    while now.size:
        if int((now | 0xFF).max()) >= len(units):
            raise ValueError(f"{where} has a trie that leads out of itself")
        now = np.unique(now[~seen[now]])
        seen[now] = True
        found = []
        for some in np.array_split(now, -(-len(now) // 4096) or 1):  # 4 MB at a time
            next = (some[:, None] ^ letters).reshape(-1)
            taken = next[units[next] & 0x800000FF == np.tile(letters, len(some))]
            follow = taken ^ _after(units[taken])
            leaf = follow[(units[taken] >> 8 & 1).astype(bool)]
            if leaf.size and int(leaf.max()) >= len(units):
                raise ValueError(f"{where} has a trie that leads out of itself")
            values.append(units[leaf] & np.uint32(0x7FFFFFFF))
            found.append(follow)
        now = np.concatenate(found)
    return np.concatenate(values) if values else units[:0]


def _after(units: Units) -> Units:
    """Return the distance from each unit to its children."""
    offset: Units = (units >> np.uint32(10)) << ((units & np.uint32(1 << 9)) >> np.uint32(6))
    return offset
