"""Ids to text events: where each request's text ends, and what its caller sees of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from infeng_core.request import Completion, FinishReason, Timings, Usage
from infeng_core.scheduler import Batch
from infeng_core.scheduler import Sequence as Running
from infeng_core.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Event:
    """What one step gave to one request."""

    index: int
    """Which of the prompts of the call it belongs to."""
    text: str
    """The text that became certain, often "" within a character or a possible stop string."""
    token_ids: tuple[int, ...]
    """The new tokens."""
    completion: Completion | None = None
    """The whole answer, with the request's last event."""


class StopStrings:
    """Finds the first stop string to be complete in a text that comes in pieces.

    What could be the beginning of one is held back until that is decided, so that the text given out never contains a
    stop string and does not depend on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Look for each of ``stops``."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """Take more text; return the text that may be given out and whether a stop string is complete."""
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
        """Return what was held back; no text follows."""
        held, self._held = self._held, ""
        return held


@dataclass(slots=True, eq=False)
class Output:
    """What one request has produced so far, and the events its caller has not taken yet."""

    sequence: Running
    detokenizer: Detokenizer
    stops: StopStrings
    ends: frozenset[int]  # tokens that end the text
    index: int = 0
    events: deque[Event | Exception] = field(default_factory=deque)
    completion: Completion | None = None
    error: Exception | None = None
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    submitted: float = field(default_factory=time.perf_counter)
    first_token: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def take(self, new: list[int], drafted: int) -> None:
        """Take what a step gave: ``new`` tokens, all but the first of them guessed right of ``drafted``.

        What follows the end of the text is dropped. A step that ran again, because Ctrl-C came before it was recorded,
        gives the same tokens again; none is given out twice.
        """
        given = len(self.tokens) - (self.sequence.length - self.sequence.prompt_length)
        if given == 0:
            self.drafted += drafted
        for index in range(given, len(new)):
            if self.completion is not None:
                return
            self.accepted += index > 0
            self.push(new[index])

    def push(self, token: int) -> None:
        """Take the next token and queue its event; the last one has the completion."""
        if not self.tokens:
            self.first_token = time.perf_counter()
        self.tokens.append(token)
        is_end = token in self.ends
        is_full = self.sequence.prompt_length + len(self.tokens) == len(self.sequence.tokens)
        piece = "" if is_end else self.detokenizer.push(token)
        if is_end or is_full:
            piece += self.detokenizer.finish()
        text, is_stopped = self.stops.push(piece)
        if is_end or is_stopped:
            self._end("stop", text if is_stopped else text + self.stops.finish(), (token,))
        elif is_full:
            self._end("length", text + self.stops.finish(), (token,))
        else:
            self.pieces.append(text)
            self.events.append(Event(self.index, text, (token,)))

    def cancel(self) -> None:
        """End the text where it is; one that has ended stays as it is."""
        if self.completion is None:
            text, is_stopped = self.stops.push(self.detokenizer.finish())
            self._end("cancelled", text if is_stopped else text + self.stops.finish(), ())

    def fail(self, error: Exception) -> None:
        """End without a completion: whoever asks for the next event or the result gets ``error``."""
        self.error = error
        self.events.append(error)

    def _end(self, reason: FinishReason, text: str, tokens: tuple[int, ...]) -> None:
        now = time.perf_counter()
        self.pieces.append(text)
        timings = Timings(
            queued=(self.sequence.started or now) - self.submitted,
            first_token=(self.first_token or now) - self.submitted,
            total=now - self.submitted,
        )
        usage = Usage(self.sequence.prompt_length, len(self.tokens), self.drafted, self.accepted)
        seed = self.sequence.seed
        self.completion = Completion("".join(self.pieces), tuple(self.tokens), reason, usage, seed, timings)
        self.events.append(Event(self.index, text, tokens, self.completion))


class Streams:
    """The outputs of all requests in flight."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._outputs: dict[int, Output] = {}

    def open(self, output: Output) -> None:
        """Follow a request."""
        self._outputs[output.sequence.id] = output

    def push(self, batch: Batch, tokens: list[list[int]]) -> list[Running]:
        """Give each sampled sequence its new tokens; return the sequences that are finished."""
        finished: list[Running] = []
        sampled = (segment for segment in batch.segments if segment.sampled)
        for segment, new in zip(sampled, tokens, strict=True):
            sequence = segment.sequence
            output = self._outputs.get(sequence.id)
            if output is not None:
                output.take(new, segment.sampled - 1)
            if output is None or output.completion is not None:
                finished.append(sequence)
                self._outputs.pop(sequence.id, None)
        return finished

    def cancel(self, sequence: Running) -> None:
        """End a request's text where it is; one that has ended is ignored."""
        output = self._outputs.pop(sequence.id, None)
        if output is not None:
            output.cancel()

    def fail(self, sequence: Running, error: Exception) -> None:
        """End a request that cannot be served; one that has ended is ignored."""
        output = self._outputs.pop(sequence.id, None)
        if output is not None:
            output.fail(error)

    def open_sequences(self) -> list[Running]:
        """Return the sequences that have not ended."""
        return [output.sequence for output in self._outputs.values()]


class Stream:
    """One submitted request. Iterating takes its events and runs the engine as far as that needs."""

    def __init__(
        self, output: Output, run_until: Callable[[Callable[[], bool]], None], cancel: Callable[[Running], None]
    ) -> None:
        """Made by ``Engine.submit``."""
        self._output = output
        self._run_until = run_until
        self._cancel = cancel

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events that have not been taken yet, up to the last."""
        return self

    def __next__(self) -> Event:
        """Return the next event; errors of a failed step are raised here."""
        output = self._output
        self._run_until(lambda: bool(output.events) or self.finished)
        if not output.events:
            raise StopIteration
        return taken(output.events)

    @property
    def finished(self) -> bool:
        """Whether the request has ended."""
        return self._output.completion is not None or self._output.error is not None

    @property
    def is_ready(self) -> bool:
        """Whether there is an event to take."""
        return bool(self._output.events)

    def pending(self) -> list[Event]:
        """Take the events that are there, without running the engine."""
        events = self._output.events
        return [taken(events) for _ in range(len(events))]

    def cancel(self) -> None:
        """End the request soon; its last event then says ``cancelled``. Any thread may call this."""
        self._cancel(self._output.sequence)

    def result(self) -> Completion:
        """Run the engine until the request has ended and return its completion."""
        output = self._output
        self._run_until(lambda: self.finished)
        if output.completion is None:
            raise output.error or AssertionError("a request ended without a completion")
        return output.completion


def taken(events: deque[Event | Exception]) -> Event:
    """Take the next event; raises what stands in its place where a request could not be served."""
    event = events.popleft()
    if isinstance(event, Exception):
        raise event
    return event


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``stop`` and is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
