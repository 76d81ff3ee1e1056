"""The run of a batch in the backend: its logits, and its early ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core.backends.interface import Executable, InterruptedStepError, NotFiniteError
from infeng_core.backends.isolation import failing_requests
from infeng_core.batch import Batch
from infeng_core.engine.embedding import hand_out
from infeng_core.engine.in_flight import InFlight
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

    def run(self, batch: Batch, executable: Executable) -> NDArray[np.float32] | None:
        """Return a batch's logits, (samples, vocab); None if requests spoilt it (and were ended), or it was not
        wanted.

        Raises KernelError if an operation fails or ``interrupt`` was called.
        """
        self._batch, self._is_interrupted = batch, False
        try:
            self._sampler.begin(batch)
            observers, run = self._observers, executable.run
            logits = observers.timed("run", run, batch) if observers.present else run(batch)
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
