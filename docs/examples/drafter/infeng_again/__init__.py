"""A drafter: the last tokens of a sequence come again. ``speculation: {use: again}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

from infeng_core.api import hookimpl


class Again:
    """Guesses the last ``window`` tokens over and over."""

    def __init__(self, window: int, prompt: Sequence[int]) -> None:
        """Start with the prompt."""
        self._window = window
        self._last = list(prompt[-window:])

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that the sequence has gained."""
        self._last = [*self._last, *tokens][-self._window :]

    def draft(self, count: int) -> list[int]:
        """Return ``count`` guesses."""
        return list(islice(cycle(self._last), count))


@hookimpl
def infeng_drafters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafter."""
    return {"again": partial(Again, settings["window"])}
