"""The requests in flight: callers' commands are executed between two steps, and the state is repaired after Ctrl-C."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import wraps
from time import perf_counter
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from infeng_core.adapters.registry import Registry
from infeng_core.batch import Batch, RunningRequest
from infeng_core.errors import InfengError, PluginError
from infeng_core.log import get_logger
from infeng_core.requests.output import Output, not_finite
from infeng_core.requests.request import FinishReason
from infeng_core.requests.stream import Reader, Streams
from infeng_core.scheduling.admission import Backlog
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.telemetry.observers import Observers

Command = tuple[Callable[[Output], None], Output]
"""A command before the next step, and its request."""

_log = get_logger(__name__)

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _orderly(
    method: Callable[Concatenate[InFlight, _P], _T],
) -> Callable[Concatenate[InFlight, _P], _T]:
    """Repair, before ``method``, the state after an exception such as KeyboardInterrupt at any line."""

    @wraps(method)
    def orderly(self: InFlight, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if self.is_torn:
            self.restore()
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self.is_torn = True
            raise

    return orderly


class InFlight:
    """The requests of an engine from their submission to their end, and their scheduler.

    The events given to callers are the record, from which all other state follows. Any thread may call ``submit`` and
    ``cancel``; the other methods are called in turns of the step lock.
    """

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler],
        name: str,
        registry: Registry,
        backlog: Backlog,
        observers: Observers,
    ) -> None:
        """Start without requests.

        make_scheduler: called now and after every interrupt. name: of its policy. registry: of adapters, some of
        which may fail to load. backlog: counts requests that have not started. observers: notified of stages and
        requests.
        """
        self._make_scheduler = make_scheduler
        self._name = name
        self._registry = registry
        self._backlog = backlog
        self._observers = observers
        self.streams = Streams()
        self.commands: deque[Command | Reader] = deque()
        """Commands in the order of arrival; a Reader whose stream is gone cancels its request."""
        self.is_torn = False
        self._is_suspect = False
        """Whether the policy has failed on a request and may hold part of its state."""
        self._changes = 0  # count of the registry at the latest search for a batch
        self.scheduler = make_scheduler()

    def submit(self, output: Output) -> None:
        """Queue a request for the next step."""
        sequence = output.sequence
        self._backlog.enter(sequence.id, sequence.prompt_length, sequence.request.tenant)
        if self._observers.present:
            self._observers.submitted(sequence.id, sequence.request, sequence.prompt_length)
        self.commands.append((self._take_in, output))

    def cancel(self, output: Output) -> None:
        """Queue the end of a request for the next step."""
        output.is_cancelled = True
        self.commands.append((self._drop, output))

    def no_batch(self) -> PluginError:
        """Return the error of a scheduler whose requests wait without a reason."""
        return self._scheduler_error("requests wait, and it has no batch")

    # -------------------------------------------------------------------------------------------- around a batch ---

    @_orderly
    def next_batch(self) -> Batch | None:
        """Return the scheduler's next batch, if there is anything to do."""
        self._changes = self._registry.changes
        return self._trusted(self._scheduled)

    def _scheduled(self) -> Batch | None:
        self._settle()
        observers, next_batch, now = self._observers, self.scheduler.next_batch, perf_counter()
        return observers.timed("schedule", next_batch, now) if observers.present else next_batch(now)

    def _trusted(self, ask: Callable[[], _T]) -> _T:
        """Call the policy. If it fails after an earlier failure in ``add``, it is made again once, without the
        refused request."""
        try:
            return ask()
        except Exception:
            if not self._is_suspect:
                raise
            self.restore()
            return ask()

    def wait(self) -> bool:
        """If there was no batch, sleep until an adapter changes; return False if none is awaited."""
        scheduler = self.scheduler
        return scheduler.waiting > 0 and self._registry.wait(self._changes, scheduler.next_deadline - perf_counter())

    @_orderly
    def record(self, batch: Batch, tokens: list[list[int]], logits: NDArray[np.float32]) -> None:
        """Give callers the results of a batch.

        tokens: of each sampled segment. logits: (samples, vocab) from which they were drawn.
        """
        observers, push, commit = self._observers, self.streams.push, self.scheduler.commit
        is_observed = bool(observers.present)
        finished = (
            observers.timed("detokenize", push, batch, tokens, logits) if is_observed else push(batch, tokens, logits)
        )
        now = perf_counter()
        try:
            if is_observed:
                observers.timed("schedule", commit, batch, tokens, finished, now)
            else:
                commit(batch, tokens, finished, now)
        except Exception:
            if not self._is_suspect:
                raise
            self.restore()  # as in ``_trusted``: the streams' events suffice to start again
        closed = self.streams.close(finished)
        for output in closed:
            output.end_guesses()
        if is_observed:
            self._tell(closed)
        self._trusted(self._settle)

    @_orderly
    def end_not_finite(self, sequences: Iterable[RunningRequest]) -> None:
        """End requests whose rows hold NaN or infinity."""
        for sequence in sequences:
            self._end(self.streams.of(sequence), not_finite(sequence.request))

    def fail_all(self, error: InfengError) -> None:
        """End all requests with an error, whatever their scheduler does."""
        for output in self.streams.outputs():
            try:
                if not self.is_torn:
                    self.scheduler.drop(output.sequence, perf_counter())
            except Exception:
                self.is_torn = True
            if self.is_torn:
                output.restore()
            output.fail(error)
            self._let_go(output)
        if self.is_torn:
            self._begin_again(error)

    def _begin_again(self, error: InfengError) -> None:
        """Make another scheduler for later requests; if that fails, they end as well."""
        try:
            self.restore()
        except Exception:
            _log.exception("no scheduler can be made")
            while self.commands:
                command = self.commands.popleft()
                output = command.output if isinstance(command, Reader) else command[1]
                output.fail(error)
                self._let_go(output)

    @_orderly
    def settle(self) -> None:
        """Execute the commands since the last step in order, and end requests that cannot be served."""
        self._trusted(self._settle)

    def _settle(self) -> None:
        """Execute the commands. Each is removed only after it is done, so that it is repeated after Ctrl-C."""
        while self.commands:
            command = self.commands[0]
            if isinstance(command, Reader):
                self._drop(command.output)
            else:
                command[0](command[1])
            self.commands.popleft()
        while self._registry.failed:
            reference = self._registry.failed[0]
            if reference.owner is not None and reference.error is not None:  # a request without owner has ended
                self._end(reference.owner, reference.error)
            self._registry.failed.popleft()
        for sequence in self.scheduler.expired(perf_counter()):
            self._drop(self.streams.of(sequence), "timeout")

    # --------------------------------------------------------------------------------------------- when it is torn ---

    def restore(self) -> None:
        """Start again from the events given to callers: another scheduler computes all requests again."""
        self._is_suspect = False
        self.scheduler = self._make_scheduler()
        for output in self.streams.outputs():
            sequence = output.sequence
            output.restore()
            if output.finished:
                self._let_go(output)
            else:
                sequence.restart(output.tokens)
                self._schedule(output)
        self.is_torn = False

    def close(self) -> None:
        """End all requests as cancelled; it can be called again after an interrupt."""
        was_torn, self.is_torn = self.is_torn, True
        outputs = [command.output if isinstance(command, Reader) else command[1] for command in self.commands]
        for output in (*self.streams.outputs(), *outputs):
            if was_torn:
                output.restore()
            output.cancel()
            self._let_go(output)

    # ---------------------------------------------------------------------------------------------- one request's ---

    def _take_in(self, output: Output) -> None:
        if not output.finished and self.streams.open(output):
            self._schedule(output)

    def _schedule(self, output: Output) -> None:
        reference = output.sequence.adapters
        try:
            if reference is not None and reference.error is not None:
                raise reference.error
            self.scheduler.add(output.sequence, perf_counter())
        except InfengError as error:
            self._is_suspect |= isinstance(error, PluginError)
            self._end(output, error)
        except Exception as error:
            self._is_suspect = True
            self._end(output, self._scheduler_error(f"it does not take a request ({type(error).__name__}: {error})"))

    def _scheduler_error(self, why: str) -> PluginError:
        return PluginError(f"scheduler {self._name}", why, "use fcfs")

    def _drop(self, output: Output, reason: FinishReason = "cancelled") -> None:
        try:
            self.scheduler.drop(output.sequence, perf_counter())
        finally:  # even if the policy fails
            output.cancel(reason)
            self._let_go(output)

    def _end(self, output: Output, error: InfengError) -> None:
        try:
            self.scheduler.drop(output.sequence, perf_counter())
        finally:
            output.fail(error)
            self._let_go(output)

    def _let_go(self, output: Output) -> None:
        """Release the resources of an ended request."""
        self._backlog.leave(output.sequence.id, perf_counter())
        output.end_guesses()
        if output.sequence.adapters is not None:
            output.sequence.adapters.close()
        self.streams.close([output.sequence])
        if self._observers.present:
            self._tell([output])

    def _tell(self, outputs: Iterable[Output]) -> None:
        """Notify observers, once each, of requests that ended."""
        for output in outputs:
            if output.finished and not output.is_told:
                output.is_told = True
                self._observers.ended(output.sequence.id, output.sequence.request, output.outcome)
