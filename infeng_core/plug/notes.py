"""Notes about what a plugin names and this engine does not know: it is left out, and the rest of the plugin is used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from infeng_core.errors import printable
from infeng_core.settings.schema import suggestion

MOST = 20
"""Notes about one plugin or library; further ones are counted."""

Unknown: TypeAlias = tuple[str, str, str, Iterable[str], str]
"""Place in a file, kind of word, word, the words of this kind that are known, and what follows from it."""
LEFT_OUT = "it is left out"


def notes(unknown: Sequence[Unknown]) -> tuple[str, ...]:
    """Return a note for each unknown word."""
    found = [
        f"{printable(place, 300)}: {note(f'{what} {printable(word, 80)}', outcome)}{suggestion(word, known)}"
        for place, what, word, known, outcome in unknown[:MOST]  # looking for a likely intention takes long
    ]
    return shortened(found, len(unknown[MOST:]))


def note(what: str, outcome: str = LEFT_OUT) -> str:
    """Return the sentence about an unknown thing: ``the op layernorm is not known here: its kernel is left out``."""
    return f"the {what} is not known here: {outcome}"


def shortened(texts: Sequence[str], more: int = 0) -> tuple[str, ...]:
    """Return the first of many texts, the others as a number."""
    more += len(texts[MOST:])
    return (*texts[:MOST], *([f"and {more} more"] if more else []))
