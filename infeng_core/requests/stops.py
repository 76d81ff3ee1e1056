"""Stop strings: detected once they are complete, and held back before, however a text is split into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string to be complete in a text that comes in pieces.

    Text that could begin a stop string is held back until it is decided, so that the returned text never contains one
    and does not depend on the pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for each of ``stops``."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Take more text; return the text that is certain and whether a stop string is complete."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        found = [(begin + len(stop), begin) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """Return the text held back; no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop`` and is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
