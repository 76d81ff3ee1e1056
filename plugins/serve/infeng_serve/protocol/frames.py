"""Server-sent events and their ids, by which a broken stream is resumed.

The id of a frame is ``<call>/<position of each choice, joined by .>``. A position is the number of tokens that the
choice has sent, plus one once it has ended. ``<before>-<after>-<frames>`` stands for the first ``frames`` frames of
several that lead from one position to another. ``/<frames of the closing>`` and ``/<sequence number>`` may follow. The
call is the server's unique id, since ids that clients give need not be unique.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infeng_core.api import Event, Request
from infeng_serve.protocol.answer import EVENTS, Context, merged
from infeng_serve.protocol.errors import ApiError, invalid
from infeng_serve.protocol.parameters import Common

DONE = b"data: [DONE]\n\n"

COMMENT = b": keep-alive\n"
"""A comment line of server-sent events, which readers skip."""

HEADER = "Last-Event-ID"
"""The header with the id of the last frame that the client has."""

_NUMBER = re.compile(r"[0-9]{1,15}")
_POSITION = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15})-([0-9]{1,15}))?")


@dataclass(slots=True)
class _Mark:
    """A resuming client's position in one choice."""

    text: str
    """The position as in the id."""
    before: int
    after: int
    frames: int
    """Number of frames between the two that the client has."""
    position: int = 0
    held: list[Event] = field(default_factory=list)
    """Events between the two, which are rendered as one step, as the first time."""


class Frames:
    """The frames of one call. A subclass renders them; this class numbers them and skips those that a client has."""

    numbered = False
    """Whether frames carry ids."""
    kind = EVENTS
    """Content type of a stream."""

    def __init__(self, given: Common, context: Context, requests: Sequence[Request]) -> None:
        """Answer the request body ``given`` with a choice for each request."""
        call, choices = context.own_id, len(requests)
        self.requests = requests
        self.streams = bool(given.stream)
        self.model = given.model or context.model
        self.context = context
        self.paths: Mapping[str, str] = {}
        """Paths of the parameters that asked for logit processors, by the processors' names, for errors."""
        self._call = call
        self._before_id = f"id: {call}/".encode()
        self._positions = [0] * choices
        self._marks: list[_Mark | None] = [None] * choices
        self._is_resumed = False
        self._closed = 0  # closing frames that the client has
        self._next: int | None = None  # the sequence number after the client's last one
        self._sequence: int | None = None  # sequence number of the next frame, if the route's frames have numbers

    # ------------------------------------------------------------------------------------------ for subclasses ---

    def _open(self) -> list[bytes]:
        raise NotImplementedError

    def _render(self, choice: int, event: Event) -> list[bytes]:
        """Return the frames for a request's event."""
        raise NotImplementedError

    def _close(self) -> list[bytes]:
        raise NotImplementedError

    # -------------------------------------------------------------------------------------------------- as Answer ---

    def opening(self) -> bytes:
        """Return the frames before the first event."""
        first = self._sequence
        frames = self._open()
        if self._is_resumed:
            return b""
        if self.numbered and frames:  # a client that lacks one of these has no id, and calls anew
            frames[-1] = self._id(self._place(), 0, _later(first, len(frames) - 1)) + frames[-1]
        return b"".join(frames)

    def frames(self, choice: int, events: Sequence[Event]) -> bytes:
        """Return the frames for a request's events, the last of which may hold its completion; may be empty."""
        if (mark := self._marks[choice]) is not None:
            return b"".join(self._catch_up(choice, mark, events))
        if self.numbered:
            self._go_on(0)
            return b"".join(self._numbered(choice, events))
        return b"".join(self._render(choice, merged(events)))

    def closing(self) -> bytes:
        """Return the frames after the end of all choices: the usage, if it was asked for, and the end marker."""
        self._go_on(self._closed)
        first = self._sequence
        frames = self._close()
        if self.numbered:
            place = self._place()
            frames = [
                frame if frame is DONE else self._id(place, index + 1, _later(first, index)) + frame
                for index, frame in enumerate(frames)
            ]
        return b"".join(frames[self._closed :])

    def idle(self) -> bytes:
        """Return the comment that keeps a silent stream open.

        An empty line ends it if frames have no ids. If they have, it is left out, since openai-python and httpx-sse
        would read it as the end of an event without data.
        """
        return COMMENT if self.numbered else COMMENT + b"\n"

    def failed(self, error: ApiError) -> bytes:
        """Return the frames that end a begun stream with an error."""
        return b"data: " + error.body() + b"\n\n" + DONE

    def resume(self, last_id: str) -> None:
        """Skip the frames up to the one with this id. Must be called before any frame is rendered.

        Raises ApiError for an id of another call and for an invalid one.
        """
        call, rest = last_id[: len(self._call) + 1], last_id[len(self._call) + 1 :]
        place, *numbers = rest.split("/")
        marks = [_mark(position) for position in place.split(".")]
        wrong = call != f"{self._call}/" or len(marks) != len(self._marks) or None in marks or len(numbers) > 2
        if wrong or not all(map(_NUMBER.fullmatch, numbers)):
            raise invalid(HEADER, f"{HEADER}: it is not an id of a frame of this answer")
        self._marks = [mark if mark is not None and mark.after else None for mark in marks]
        self._is_resumed = True
        self._closed = int(numbers[0]) if numbers else 0
        self._next = int(numbers[1]) + 1 if len(numbers) > 1 else None

    # -------------------------------------------------------------------------------------------------- internals ---

    def _catch_up(self, choice: int, mark: _Mark, events: Sequence[Event]) -> list[bytes]:
        """Render the events without the frames that the client has."""
        silent: list[Event] = []
        taken = 0
        while taken < len(events) and mark.position < mark.after:
            event = events[taken]
            mark.position += steps(events[taken : taken + 1])
            (silent if mark.position <= mark.before else mark.held).append(event)
            taken += 1
        if silent:
            self._render(choice, merged(silent))
        if mark.position < mark.after and not (events and events[-1].completion):
            return []
        self._marks[choice] = None
        self._positions[choice] = mark.position - steps(mark.held)
        self._go_on(mark.frames)
        frames = self._numbered(choice, mark.held)[mark.frames :] if mark.held else []
        return [*frames, *(self._numbered(choice, events[taken:]) if events[taken:] else ())]

    def _numbered(self, choice: int, events: Sequence[Event]) -> list[bytes]:
        before = self._positions[choice]
        after = self._positions[choice] = before + steps(events)
        first = self._sequence
        frames = self._render(choice, merged(events))
        if not (self.numbered and frames):
            return frames
        if len(frames) == 1:  # nearly all
            return [self._id(self._place(), 0, first) + frames[0]]
        place = self._places()
        for index, frame in enumerate(frames):
            is_last = index + 1 == len(frames)
            place[choice] = str(after) if is_last else f"{before}-{after}-{index + 1}"
            frames[index] = self._id(".".join(place), 0, _later(first, index)) + frame
        return frames

    def _go_on(self, repeated: int) -> None:
        """Continue the sequence numbers after the client's last frame. repeated: frames that are rendered again."""
        if self._next is not None:
            self._sequence, self._next = self._next - repeated, None

    def _place(self) -> str:
        return ".".join(self._places())

    def _places(self) -> list[str]:
        """Return the client's position in each choice; in a choice that catches up, the one from its id."""
        if not self._is_resumed:
            return list(map(str, self._positions))
        pairs = zip(self._positions, self._marks, strict=True)
        return [str(position) if mark is None else mark.text for position, mark in pairs]

    def _id(self, place: str, closed: int, sequence: int | None) -> bytes:
        ending = f"/{closed}/{sequence}\n" if sequence is not None else f"/{closed}\n" if closed else "\n"
        return self._before_id + (place + ending).encode()


def steps(events: Sequence[Event]) -> int:
    """Return the number of positions by which events advance a choice."""
    return sum(len(event.token_ids) + (event.completion is not None) for event in events)


def _mark(position: str) -> _Mark | None:
    found = _POSITION.fullmatch(position)
    if found is None:
        return None
    first = int(found[1])
    after, frames = (first, 0) if found[2] is None else (int(found[2]), int(found[3]))
    return _Mark(position, first, after, frames)


def _later(sequence: int | None, by: int) -> int | None:
    return None if sequence is None else sequence + by
