"""A text that arrives in pieces, read by generators that yield when they need more of it.

The result depends on the text alone and not on where it was cut: a generator decides only what further text cannot
change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""A reader, which yields whenever it needs more text."""


class MalformedError(Exception):
    """A text begins like a call and is not one."""


class Cursor:
    """A position in the text."""

    def __init__(self) -> None:
        """Start with an empty text."""
        self.text = ""
        """The buffered text: from the mark on, or else from the position on."""
        self.at = 0
        """Index of the next character in it."""
        self.ended = False
        """Whether the text is complete."""
        self._mark: int | None = None

    def feed(self, text: str) -> None:
        """Append more text."""
        done = self.at if self._mark is None else self._mark
        self.text = self.text[done:] + text
        self.at -= done
        if self._mark is not None:
            self._mark = 0

    def mark(self) -> None:
        """Keep the text from here on, for ``rewind``."""
        self._mark = self.at

    def rewind(self) -> None:
        """Go back to the mark."""
        assert self._mark is not None
        self.at = self._mark

    def release(self) -> None:
        """Remove the mark."""
        self._mark = None

    def more(self) -> Steps[bool]:
        """Wait for more text; return False at the end."""
        if self.ended:
            return False
        yield
        return True

    def char(self) -> Steps[str]:
        """Return the next character without consuming it; "" at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def take(self) -> Steps[str]:
        """Consume the next character; raises MalformedError at the end."""
        found = yield from self.char()
        if not found:
            raise MalformedError
        self.at += 1
        return found

    def blank(self) -> Steps[str]:
        """Skip blanks; return the next character as ``char`` does."""
        while (found := (yield from self.char())) and found.isspace():
            self.at += 1
        return found

    def literal(self, text: str) -> Steps[bool]:
        """Consume ``text`` if it is next; return whether it was."""
        while True:
            rest = self.text[self.at : self.at + len(text)]
            if rest == text:
                self.at += len(text)
                return True
            if not text.startswith(rest) or not (yield from self.more()):
                return False

    def expect(self, text: str) -> Steps[None]:
        """Consume blanks and then ``text``; raises MalformedError for any other text."""
        yield from self.blank()
        if not (yield from self.literal(text)):
            raise MalformedError

    def until(self, *tags: str, most: int | None = None) -> Steps[tuple[str, str]]:
        """Consume the text before the first of ``tags``, and the tag; return both.

        Raises MalformedError if there is no tag, or none within ``most`` characters.
        """
        pieces: list[str] = []
        tag = yield from self.stream(tags, pieces.append, most)
        if tag is None:
            raise MalformedError
        return "".join(pieces), tag

    def stream(
        self, tags: Collection[str], give: Callable[[str], object], most: int | None = None
    ) -> Steps[str | None]:
        """Pass the text before the first of ``tags`` to ``give`` as soon as it is certain; return the consumed tag.

        Returns None if the text ends before a tag. No tag may be a prefix of another.
        """
        given = 0
        while True:
            text, at = self.text, self.at
            found = [(begin, tag) for tag in tags if (begin := text.find(tag, at)) >= 0]
            if found:
                begin, tag = min(found)
                self.at = begin + len(tag)
                if begin > at:
                    give(text[at:begin])
                return tag
            held = 0 if self.ended else max((_overlap(text, at, tag) for tag in tags), default=0)
            self.at = len(text) - held
            if self.at > at:
                given += self.at - at
                if most is not None and given > most:
                    raise MalformedError
                give(text[at : self.at])
            if self.ended:
                return None
            yield


def _overlap(text: str, begin: int, tag: str) -> int:
    """Return the length of the longest suffix of ``text[begin:]`` that is a proper prefix of ``tag``."""
    longest = min(len(text) - begin, len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(tag[:length])), 0)
