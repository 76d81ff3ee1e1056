"""Streams: the outputs of all requests in flight, and what each caller holds of his."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import Batch, RunningRequest
from infeng_core.requests.output import Event, Output
from infeng_core.requests.request import Completion


class Streams:
    """The outputs of all requests in flight."""

    def __init__(self) -> None:
        """Hold none yet."""
        self._outputs: dict[int, Output] = {}

    def open(self, output: Output) -> bool:
        """Follow a request; return whether that is new."""
        is_new = output.sequence.id not in self._outputs
        self._outputs[output.sequence.id] = output
        return is_new

    def push(self, batch: Batch, tokens: list[list[int]], logits: NDArray[np.float32]) -> list[RunningRequest]:
        """Give each sampled sequence its new tokens; return the sequences that are finished.

        logits: what they were drawn from, (samples, vocab).
        """
        finished: list[RunningRequest] = []
        sampled = (segment for segment in batch.segments if segment.sampled)
        row = 0
        for segment, new in zip(sampled, tokens, strict=True):
            output = self._outputs.get(segment.sequence.id)
            if output is not None and output.reports:
                output.report(segment, new, logits[row : row + segment.sampled])
            elif output is not None:
                output.take(new, segment.sampled - 1)
            if output is None or output.finished:
                finished.append(segment.sequence)
            row += segment.sampled
        return finished

    def close(self, sequences: Iterable[RunningRequest]) -> list[Output]:
        """Follow requests no longer; return the outputs of those that were followed."""
        closed = []
        for sequence in sequences:
            output = self._outputs.pop(sequence.id, None)
            if output is not None:
                output.reader = None
                closed.append(output)
        return closed

    def of(self, sequence: RunningRequest) -> Output:
        """Return the output of a request that is followed."""
        return self._outputs[sequence.id]

    def nobody_wants(self, batch: Batch) -> bool:
        """Return whether all requests of a batch were cancelled."""
        outputs = (self._outputs.get(segment.sequence.id) for segment in batch.segments)
        return all(output is None or output.is_cancelled for output in outputs)

    def outputs(self) -> list[Output]:
        """Return all outputs in the order of their arrival."""
        return list(self._outputs.values())


class Reader(weakref.ref["Stream"]):
    """Tells that a stream has no reader any more, from wherever that happens: ``gone`` is called with this object.

    A ``gone`` that is not Python's own code, such as a deque's ``append``, cannot be interrupted.
    """

    def __init__(self, stream: Stream, gone: Callable[[Reader], None], output: Output) -> None:
        """Watch ``stream``, which reads ``output``."""
        super().__init__(stream, gone)  # type: ignore[call-arg]
        self.output = output
        output.reader = self  # a weak reference tells nothing once it is gone itself

    def __new__(cls, stream: Stream, gone: Callable[[Reader], None], output: Output) -> Reader:
        """Make the reference."""
        return super().__new__(cls, stream, gone)


class Stream:
    """One submitted request. Iterating takes its events, and runs the engine as far as needed if no other thread does.

    A request whose stream has no reader any more is cancelled.
    """

    def __init__(
        self,
        output: Output,
        run_until: Callable[[Callable[[], bool]], None],
        cancel: Callable[[Output], None],
        arrival: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """Made by ``Engine.submit``."""
        self._output = output
        self._run_until = run_until
        self._cancel = cancel
        self._arrival = arrival

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events that have not been taken yet, up to the last."""
        return self

    def __next__(self) -> Event:
        """Return the next event; errors of a failed step are raised here."""
        self._run_until(lambda: self.is_ready or self.finished)
        event = self._output.next_event()
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> Stream:
        """Iterate over the same events in a coroutine, while the engine's own thread runs the steps."""
        return self

    async def __anext__(self) -> Event:
        """Return the next event; raises UsageError where the engine has not been started."""
        await self._arrival(lambda: self.is_ready or self.finished)
        event = self._output.next_event()
        if event is None:
            raise StopAsyncIteration
        return event

    @property
    def finished(self) -> bool:
        """Whether the request has ended."""
        return self._output.finished

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._output.sequence.prompt_length

    @property
    def cached_tokens(self) -> int:
        """The part of them that had been computed for another request; 0 before the first step."""
        return self._output.sequence.cached

    @property
    def is_ready(self) -> bool:
        """Whether there is an event to take."""
        return self._output.given < len(self._output.events)

    def pending(self) -> list[Event]:
        """Take the events that are there, without running the engine."""
        events: list[Event] = []
        while (event := self._output.next_event()) is not None:
            events.append(event)
        return events

    def cancel(self) -> None:
        """End the request soon; its last event then says ``cancelled``. Any thread may call this."""
        self._cancel(self._output)

    def result(self) -> Completion:
        """Run the engine until the request has ended and return its completion."""
        output = self._output
        self._run_until(lambda: output.finished)
        if output.completion is None:
            error = output.events[-1]
            raise error if isinstance(error, Exception) else AssertionError("a request ended without a completion")
        return output.completion
