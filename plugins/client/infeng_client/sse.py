"""Incremental parser for server-sent events, by the HTML standard."""

from __future__ import annotations

import re
from typing import NamedTuple

ENDS = re.compile(rb"\r\n|\r|\n")
BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One complete event."""

    data: str
    """The lines of its ``data`` fields."""
    name: str = ""
    """The value of its ``event`` field."""
    id: str | None = None
    """The last ``id`` of this event or an earlier one, from which to resume after this event."""


class Parser:
    """Parses one stream from its beginning. An incomplete event at its end is dropped."""

    def __init__(self) -> None:
        """Start at the beginning of a stream."""
        self._rest = bytearray()
        self._searched = 0
        self._begun = False
        self._after_cr = False
        self._data: list[str] = []
        self._name = ""
        self._id: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        """Parse the next bytes; return the events that end in them."""
        rest = self._rest
        rest += data
        if not self._begun:
            if len(rest) < len(BOM) and BOM.startswith(rest):
                return []
            self._begun = True
            if rest.startswith(BOM):
                del rest[: len(BOM)]
        if self._after_cr and rest:
            self._after_cr = False
            if rest.startswith(b"\n"):
                del rest[:1]
        events = []
        place = 0
        for end in ENDS.finditer(rest, self._searched):
            event = self._line(rest[place : end.start()].decode("utf-8", "replace"))
            place = end.end()
            self._after_cr = end.group() == b"\r" and place == len(rest)  # its \n may be the next byte
            if event is not None:
                events.append(event)
        del rest[:place]
        self._searched = len(rest)
        return events

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatched()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatched(self) -> Event | None:
        event = Event("\n".join(self._data), self._name, self._id) if self._data else None
        self._data, self._name = [], ""
        return event
