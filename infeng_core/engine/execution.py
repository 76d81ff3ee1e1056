"""The run of a batch in the backend: its logits, and its early ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.backends.interface import AsynchronousRuns, Executable, InterruptedStepError, NotFiniteError
from infeng_core.backends.isolation import failing_requests
from infeng_core.batch import Batch
from infeng_core.engine.embedding import hand_out
from infeng_core.engine.in_flight import InFlight
from infeng_core.errors import InfengError, PluginError
from infeng_core.requests.sampler import Sampler
from infeng_core.telemetry.observers import Observers


class Execution:
    """Runs one batch at a time. Any thread may interrupt it or cancel an unwanted batch."""

    def __init__(self, sampler: Sampler, in_flight: InFlight, observers: Observers) -> None:
        """Start idle. sampler: starts its work on a batch beside it. in_flight: the requests of the batches.

        observers: notified of the duration of a batch.
        """
        self._sampler = sampler
        self._in_flight = in_flight
        self._observers = observers
        self._batch: Batch | None = None  # while it runs
        self._is_interrupted = False
        self._late: tuple[Batch, Any, float] | None = None  # a started batch, its handle and the time of its start
        self.is_timed = True
        """Whether the time until the latest batch was finished is the time that it ran."""

    def run(self, batch: Batch, executable: Executable) -> NDArray[np.float32] | None:
        """Return a batch's logits, (samples, vocab); None if requests spoilt it (and were ended), or it was not
        wanted.

        Raises KernelError if an operation fails or ``interrupt`` was called.
        """
        self._begin(batch)
        return self._result(batch, executable, executable.run, batch)

    def start(self, batch: Batch, runs: AsynchronousRuns) -> None:
        """Start a batch, of which ``finish`` gives the result; raises KernelError."""
        self._begin(batch)
        try:
            self._late = batch, runs.start(batch), perf_counter()
        finally:
            if self._late is None:
                self._batch = None

    @property
    def is_late(self) -> bool:
        """Whether a batch was started and not yet finished."""
        return self._late is not None

    def finish(self, executable: Executable, runs: AsynchronousRuns) -> tuple[Batch, NDArray[np.float32] | None]:
        """Wait for the started batch; return it with what ``run`` returns, or raise what ``run`` raises."""
        assert self._late is not None
        batch, handle, started = self._late
        called = perf_counter()
        try:
            logits = self._result(batch, executable, runs.finish, handle)
        except Exception:
            self._late = None
            raise
        self._late = None  # not after Ctrl-C, which leaves the batch to the next step
        # Where the host came back late, the device may have been idle for as long.
        self.is_timed = perf_counter() - called >= called - started
        if logits is not None and len(logits) != len(batch.sample_rows):
            why = f"finish() returned {logits.shape} for {len(batch.sample_rows)} sampled rows"
            raise PluginError("backend", why, "use another one, such as native")
        return batch, logits

    def drop(self, executable: Executable, runs: AsynchronousRuns | None, *, always: bool) -> None:
        """End a started batch without its result if no request wants it, or ``always``; the scheduler may make it
        again."""
        if self._late is None or runs is None or not (always or self._in_flight.streams.nobody_wants(self._late[0])):
            return
        executable.cancel()
        with suppress(InfengError):  # no request wants the result
            self.finish(executable, runs)

    def _begin(self, batch: Batch) -> None:
        self._batch, self._is_interrupted = batch, False
        self._sampler.begin(batch)

    def _result(
        self, batch: Batch, executable: Executable, run: Callable[[Any], NDArray[np.float32]], what: Any
    ) -> NDArray[np.float32] | None:
        try:
            observers = self._observers
            logits = observers.timed("run", run, what) if observers.present else run(what)
            if batch.hidden:
                hand_out(batch, executable.hidden_states())  # type: ignore[attr-defined]  # from HiddenStates
            return logits
        except NotFiniteError:
            found = failing_requests(executable.run, batch)
            if not found:
                raise
            self._in_flight.end_not_finite(found)
        except InterruptedStepError:
            if self._is_interrupted:
                raise
        finally:
            self._batch = None
        return None

    def interrupt(self, executable: Executable) -> None:
        """Make a running batch stop between two tiles, and ``run`` raise."""
        self._is_interrupted = True
        executable.cancel()

    def cancel_unwanted(self, executable: Executable) -> None:
        """Stop a batch that no request needs any more; if another one has begun meanwhile, it is run again."""
        batch = self._batch
        if batch is not None and self._in_flight.streams.nobody_wants(batch):
            executable.cancel()
