"""A text that comes in pieces, read by generators that yield where they need more of it.

What a generator does depends on the text alone and never on how it was cut: it decides only what no further text can
change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TypeVar

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Reads; yields whenever more text is needed."""


class MalformedError(Exception):
    """What begins like a call is none."""


class Cursor:
    """A place in the text."""

    def __init__(self) -> None:
        """Begin with an empty text."""
        self.text = ""
        """What is kept: from the mark on, or from the place on."""
        self.at = 0
        """Index of the next character in it."""
        self.ended = False
        """Whether no text follows."""
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
        """Forget the mark."""
        self._mark = None

    def more(self) -> Steps[bool]:
        """Wait for more text; return False where none follows."""
        if self.ended:
            return False
        yield
        return True

    def char(self) -> Steps[str]:
        """Return the next character without taking it; "" at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def take(self) -> Steps[str]:
        """Take the next character; raises MalformedError at the end."""
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
        """Take ``text`` if it is what follows; return whether it was."""
        while True:
            rest = self.text[self.at : self.at + len(text)]
            if rest == text:
                self.at += len(text)
                return True
            if not text.startswith(rest) or not (yield from self.more()):
                return False

    def expect(self, text: str) -> Steps[None]:
        """Take ``text`` after blanks; raises MalformedError for anything else."""
        yield from self.blank()
        if not (yield from self.literal(text)):
            raise MalformedError

    def until(self, *tags: str, most: int | None = None) -> Steps[tuple[str, str]]:
        """Take what comes before the first of ``tags``, and the tag; return both.

        Raises MalformedError where there is none of them, or more than ``most`` characters come before.
        """
        pieces: list[str] = []
        tag = yield from self.stream(tags, pieces.append, most)
        if tag is None:
            raise MalformedError
        return "".join(pieces), tag

    def stream(
        self, tags: Collection[str], give: Callable[[str], object], most: int | None = None
    ) -> Steps[str | None]:
        """Give what comes before the first of ``tags`` as soon as it is certain; take the tag and return it.

        None where the text ends before. No tag may begin another.
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
    """Return the length of the longest end of ``text``, from ``begin`` on, that begins ``tag`` and is not all of it."""
    longest = min(len(text) - begin, len(tag) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(tag[:length])), 0)
