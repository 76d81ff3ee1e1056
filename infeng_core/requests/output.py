"""Ids to text events: the end of a request's text, and the events for its caller."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import NOT_FINITE, RunningRequest, Segment
from infeng_core.errors import KernelError, PluginError, RequestError
from infeng_core.requests.logprobs import logprob
from infeng_core.requests.request import Completion, FinishReason, Logprob, Request, Timings, Usage
from infeng_core.requests.stops import StopStrings
from infeng_core.requests.tokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Event:
    """The result of one step for one request."""

    index: int
    """The index of its prompt in the call."""
    text: str
    """The text that became certain, often "" inside a character or a possible stop string."""
    token_ids: tuple[int, ...]
    """The new tokens."""
    completion: Completion | None = None
    """The whole answer, in the request's last event."""
    logprobs: tuple[Logprob, ...] = ()
    """Log-probabilities of the new tokens, if requested."""
    logits: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """(new tokens, vocab), if requested."""


class Output:
    """The output of one request so far. ``events`` is the record, and grows in one operation of the interpreter.

    All other state follows from it: ``restore`` repairs it after an exception between any two lines, such as Ctrl-C.
    """

    def __init__(
        self,
        sequence: RunningRequest,
        detokenizer: Callable[[], Detokenizer],
        ends: frozenset[int],
        index: int = 0,
        ready: deque[Output] | None = None,
    ) -> None:
        """Follow ``sequence``, whose text ends with one of the tokens ``ends``.

        detokenizer: returns one that has seen the prompt. index: of the prompt in its call. ready: the outputs of a
        call that may have events to take, in the order of their steps.
        """
        self.sequence = sequence
        self.index = index
        self.events: list[Event | Exception] = []  # an exception is the last one
        self.given = 0  # number of events that the caller has taken
        self.finished = False  # with a completion or an error
        self.is_cancelled = False  # by its caller; the next step ends it
        self.is_told = False  # whether observers were notified of its end
        self.reader: object = None
        """Reports that the stream has no reader any more; kept here, because a collected one reports nothing."""
        self._ready = ready
        self._detokenizer_of = detokenizer
        self._ends = ends
        self._submitted = time.perf_counter()
        self._first_token = 0.0
        self._drafted = self._accepted = 0
        params = sequence.request.params
        self._logprobs = params.logprobs
        self._prompt: list[Logprob | None] = []
        if sequence.report_from is not None:
            self._prompt = [None] * sequence.prompt_length
        self.reports = bool(self._prompt) or params.logits or params.logprobs is not None
        """Whether the caller wants logits or log-probabilities."""
        self._begin()

    def _begin(self) -> None:
        self.tokens: list[int] = []
        self._detokenizer = self._detokenizer_of()
        self._stops = StopStrings(self.sequence.request.params.stop)

    @property
    def completion(self) -> Completion | None:
        """The whole answer; None before the end, or without one."""
        last = self.events[-1] if self.events else None
        return last.completion if isinstance(last, Event) else None

    @property
    def outcome(self) -> Completion | Exception:
        """The completion or the error of a request that is finished."""
        last = self.events[-1]
        if isinstance(last, Exception):
            return last
        assert last.completion is not None
        return last.completion

    def report(self, segment: Segment, new: list[int], logits: NDArray[np.float32]) -> None:
        """Take the results of a step; logits of the sampled rows, (sampled, vocab), are used as requested.

        A known row gives the log-probability of the prompt's token after it.
        """
        most = self.sequence.request.params.prompt_logprobs or 0
        first = segment.pos0 + segment.row_end - segment.row_begin - segment.sampled + 1
        for position in range(first, min(first + segment.known, len(self._prompt))):
            row = logits[position - first]
            self._prompt[position] = logprob(row, int(self.sequence.tokens[position]), most)
        if new:
            self.take(new, segment.sampled - segment.known - 1, logits[segment.known :])

    def take(self, new: list[int], drafted: int, logits: NDArray[np.float32] | None = None) -> None:
        """Take ``new`` tokens of a step with ``drafted`` guesses, all but the first of them guessed right; often
        none.

        Text after the end is dropped. NOT_FINITE stands for a token that could not be drawn. logits: of the rows from
        which the tokens were drawn, if they are reported.
        """
        if not new:  # its logit processors were late, so no guess was verified
            return
        self._drafted += drafted
        self._accepted -= 1  # the first is not a guess
        try:
            for index, token in enumerate(new):
                if token == NOT_FINITE:
                    processors = self.sequence.processors
                    why = None if processors is None else processors.error
                    self.fail(why or not_finite(self.sequence.request))
                else:
                    self._accepted += 1
                    self._push(token, None if logits is None else logits[index])
                if self.finished:
                    return
        except BaseException as error:
            self._fail(error)

    def cancel(self, reason: FinishReason = "cancelled") -> None:
        """End the text at its present length; an ended one stays as it is."""
        if self.finished:
            return
        try:
            text, is_stopped = self._stops.push(self._detokenizer.finish())
            self._end(reason, Event(self.index, text if is_stopped else text + self._stops.finish(), ()))
        except BaseException as error:
            self._fail(error)

    def fail(self, error: Exception) -> None:
        """End without a completion: a call for the next event or the result raises ``error``."""
        if not self.finished:
            self._give(error)

    def restore(self) -> None:
        """Recompute all other state from the events."""
        self.finished = bool(self.events) and (isinstance(self.events[-1], Exception) or self.completion is not None)
        try:
            self._begin()
            for event in self.events if not self.finished else ():
                assert isinstance(event, Event)
                for token in event.token_ids:
                    self._stops.push(self._detokenizer.push(token))
                    self.tokens.append(token)
        except BaseException as error:
            self._fail(error)
        if self._ready is not None:
            self._ready.append(self)

    def end_guesses(self) -> None:
        """Tell the drafter of an ended request its answer."""
        if self.sequence.guesses is not None:
            self.sequence.guesses.end(self.tokens)

    def next_event(self) -> Event | None:
        """Take the next event, if there is one; raises the error that stands in its place."""
        if self.given == len(self.events):
            return None
        event = self.events[self.given]
        self.given += 1
        if isinstance(event, Exception):
            raise event
        return event

    def _fail(self, error: BaseException) -> None:
        """End this request alone, with an error about its text.

        Libraries in Rust panic with exceptions that are no Exception.
        """
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        why = f"its text cannot be made ({type(error).__name__}: {error})"
        failure = RequestError("request", why, "check the tokenizer of the model, or use another one")
        failure.__cause__ = error
        self.fail(failure)

    def _push(self, token: int, row: NDArray[np.float32] | None) -> None:
        """Turn the next token, drawn from a ``row`` of logits, into an event; the last one has the completion."""
        if not self.tokens:
            self._first_token = time.perf_counter()
        is_end = token in self._ends
        is_full = self.sequence.prompt_length + len(self.tokens) + 1 == len(self.sequence.tokens)
        piece = "" if is_end else self._detokenizer.push(token)
        if is_end or is_full:
            piece += self._detokenizer.finish()
        text, is_stopped = self._stops.push(piece)
        if (is_end or is_full) and not is_stopped:
            text += self._stops.finish()
        event = Event(self.index, text, (token,)) if row is None else self._reported(text, token, row)
        if is_end or is_stopped:
            self._end("stop", event)
        elif is_full:
            self._end("length", event)
        else:
            self._give(event)

    def _reported(self, text: str, token: int, row: NDArray[np.float32]) -> Event:
        known = () if self._logprobs is None else (logprob(row, token, self._logprobs),)
        logits = row[None].copy() if self.sequence.request.params.logits else None
        return Event(self.index, text, (token,), None, known, logits)

    def _end(self, reason: FinishReason, last: Event) -> None:
        """Give the last event, with the completion."""
        if reason in ("stop", "length") and None in self._prompt[(self.sequence.report_from or 0) + 1 :]:
            self.fail(PluginError("scheduler", "it gives no logits of known tokens", "use fcfs"))
            return
        now = time.perf_counter()
        timings = Timings(
            queued=(self.sequence.started or now) - self._submitted,
            first_token=(self._first_token or now) - self._submitted,
            total=now - self._submitted,
        )
        events = [*(event for event in self.events if isinstance(event, Event)), last]
        ids = (*self.tokens, *last.token_ids)
        rows = [event.logits for event in events if event.logits is not None]
        completion = Completion(
            "".join(event.text for event in events),
            ids,
            reason,
            Usage(self.sequence.prompt_length, len(ids), self._drafted, self._accepted, self.sequence.cached),
            self.sequence.seed,
            timings,
            tuple(one for event in events for one in event.logprobs),
            tuple(self._prompt),
            np.concatenate(rows) if rows else None,
        )
        self._give(replace(last, completion=completion))

    def _give(self, event: Event | Exception) -> None:
        self.events.append(event)
        if isinstance(event, Exception):
            self.finished = True
        else:
            self.tokens += event.token_ids
            self.finished = event.completion is not None
        if self._ready is not None:
            self._ready.append(self)


def not_finite(request: Request) -> KernelError:
    """Return the error of a request whose rows hold NaN or infinity."""
    if request.adapter is None:
        return KernelError("request", _NOT_FINITE, "check the weights of the model, or use a wider format")
    names = request.adapter if isinstance(request.adapter, str) else ", ".join(name for name, _ in request.adapter)
    return KernelError(f"request with adapter {names}", _NOT_FINITE, "check the adapter, its scale and its weight")


_NOT_FINITE = "its numbers went to NaN or infinity"
