"""Collects the deltas that readers find, and merges adjacent ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from infeng_chat.contract import Delta, ToolDelta

NewId = Callable[[], str]


def call_id() -> str:
    """Return a new id for a call."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Return a new id in the form that Mistral's templates need: nine letters and digits."""
    return secrets.token_hex(5)[:9]


class Sink:
    """The deltas of one answer.

    Blanks next to a tag are dropped, so blanks at the end of the content are held back until other text follows.
    """

    def __init__(self, new_id: NewId = call_id) -> None:
        """Start an answer."""
        self.has_content = False
        """Whether the content has more than blanks."""
        self._new_id = new_id
        self._found: list[Delta] = []
        self._calls = 0
        self._blanks = ""
        self._strips = False  # whether blanks are dropped until other text comes
        self._thinks = False

    def take(self) -> list[Delta]:
        """Return the deltas since the last call."""
        found, self._found = self._found, []
        return found

    def content(self, text: str) -> None:
        """Say something."""
        if self._strips:
            text = text.lstrip()
        if not text:
            return
        text = self._blanks + text
        said = text.rstrip()
        self._blanks = text[len(said) :]
        if said:
            self._strips, self.has_content = False, True
            self._put(Delta(content=said))

    def think(self, text: str) -> None:
        """Give reasoning."""
        if not self._thinks:
            text = text.lstrip()
            self._thinks = bool(text)
        text = self._blanks + text
        said = text.rstrip()
        self._blanks = text[len(said) :]
        if said:
            self._put(Delta(reasoning=said))

    def tag(self) -> None:
        """Note a tag: drop the blanks on both sides of it."""
        self._blanks, self._strips, self._thinks = "", True, False

    def open(self, name: str) -> None:
        """Begin a call."""
        self.tag()
        self._put(Delta(tool=ToolDelta(self._calls, self._new_id(), name)))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        if text:
            self._put(Delta(tool=ToolDelta(self._calls - 1, arguments=text)))

    def end(self) -> None:
        """Add the blanks that were held back: the content ends with them."""
        if self._blanks and not self._thinks and not self._calls:
            self._put(Delta(content=self._blanks))
        self._blanks = ""

    def _put(self, new: Delta) -> None:
        last = self._found[-1] if self._found else None
        if last is not None and (joined := _joined(last, new)) is not None:
            self._found[-1] = joined
        else:
            self._found.append(new)


def _joined(first: Delta, second: Delta) -> Delta | None:
    """Return two deltas merged, None if their kinds differ."""
    if first.content and second.content:
        return Delta(content=first.content + second.content)
    if first.reasoning and second.reasoning:
        return Delta(reasoning=first.reasoning + second.reasoning)
    old, new = first.tool, second.tool
    if old is not None and new is not None and old.index == new.index and old.name is None and new.name is None:
        return Delta(tool=ToolDelta(old.index, arguments=old.arguments + new.arguments))
    return None
