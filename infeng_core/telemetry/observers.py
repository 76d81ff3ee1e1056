"""Observers of an engine: its log, a profile, a server's traces, and the observers of plugins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from infeng_core.adapters.records import AdapterChange, AdapterInfo
from infeng_core.log import get_logger
from infeng_core.record import Record
from infeng_core.requests.request import Completion, Request

Stage = Literal["tokenize", "schedule", "run", "sample", "detokenize", "step"]
"""A stage of a request's life. "step" contains all but "tokenize"."""

_log = get_logger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


class StepReport(Record):
    """One batch that ran."""

    rows: int
    """Tokens that passed through the model."""
    requests: int
    tokens: int
    """New tokens of all requests together."""


class Observer:
    """Base class of observers; the methods do nothing, and a subclass overrides the ones that it needs.

    They are called on the threads that do the work, possibly several at a time, and the work waits for them. If a
    method raises, the log names the observer, and it is called no more.
    """

    def begin(self) -> None:
        """``Engine.observe`` calls this before all other methods, between two steps, and raises its error."""

    def end(self) -> None:
        """``Engine.observe`` calls this after all other methods, between two steps."""

    def stage(self, name: Stage, begin: int, end: int) -> None:
        """A stage has ended, on the thread of this call, also with an error.

        begin, end: nanoseconds of ``time.perf_counter_ns``.
        """

    def step(self, report: StepReport) -> None:
        """A batch ran, and its tokens were delivered to their requests; the stage "step" ends after this."""

    def submitted(self, id: int, request: Request, prompt_tokens: int) -> None:
        """A request waits for its first step. ``id`` is the engine's."""

    def ended(self, id: int, request: Request, outcome: Completion | Exception) -> None:
        """A request ended with its completion, cancelled ones included, or with an error."""

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        """An adapter was loaded, reloaded or unloaded, or failed to load: then ``info.error`` says why."""

    def close(self) -> None:
        """The engine is closed."""


class Observers:
    """The observers of one engine; any thread may add, remove or notify them.

    Without observers, ``present`` is empty; callers check it first and make no call.
    """

    def __init__(self) -> None:
        """Start without observers."""
        self.present: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Notify an observer from now on."""
        self.present = (*self.present, observer)

    def remove(self, observer: Observer) -> None:
        """Stop notifying an observer; an unknown one is ignored."""
        self.present = tuple(one for one in self.present if one is not observer)

    def begin(self, observer: Observer) -> None:
        """Begin an observer and notify it from now on."""
        observer.begin()
        self.add(observer)

    def end(self, observer: Observer) -> None:
        """Stop notifying an observer and end it."""
        self.remove(observer)
        observer.end()

    def timed(self, stage: Stage, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return the result of ``function``, or raise its error, and report the call as a stage."""
        begin = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            end = time.perf_counter_ns()
            self._tell(lambda observer: observer.stage(stage, begin, end))

    def step(self, rows: int, requests: int, tokens: int) -> None:
        """Report a batch."""
        report = StepReport(rows, requests, tokens)
        self._tell(lambda observer: observer.step(report))

    def submitted(self, id: int, request: Request, prompt_tokens: int) -> None:
        """Report a request that was put in flight."""
        self._tell(lambda observer: observer.submitted(id, request, prompt_tokens))

    def ended(self, id: int, request: Request, outcome: Completion | Exception) -> None:
        """Report a request's end."""
        self._tell(lambda observer: observer.ended(id, request, outcome))

    def adapter(self, change: AdapterChange, info: AdapterInfo) -> None:
        """Report a change of an adapter."""
        self._tell(lambda observer: observer.adapter(change, info))

    def close(self) -> None:
        """Report that the engine is closed; no report follows."""
        self._tell(lambda observer: observer.close())
        self.present = ()

    def _tell(self, say: Callable[[Observer], None]) -> None:
        for observer in self.present:
            try:
                say(observer)
            except Exception as error:  # an observer's error must not affect any answer
                self.remove(observer)
                _log.warning("an observer failed and is disabled", error=f"{type(error).__name__}: {error}")


class LogObserver(Observer):
    """The built-in observer ``log``: a line for each request that ended."""

    def ended(self, id: int, request: Request, outcome: Completion | Exception) -> None:
        """Log a request."""
        if isinstance(outcome, Exception):
            _log.info("request failed", id=id, adapter=request.adapter, error=str(outcome))
            return
        usage, timings = outcome.usage, outcome.timings
        _log.info(
            "request ended",
            id=id,
            adapter=request.adapter,
            reason=outcome.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            first_token_ms=round(1000 * timings.first_token, 1),
            total_ms=round(1000 * timings.total, 1),
        )
