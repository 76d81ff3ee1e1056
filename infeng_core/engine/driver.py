"""The thread that runs the steps: a caller that waits for results, or the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from infeng_core.engine.in_flight import InFlight
from infeng_core.engine.lifetime import Lifetime
from infeng_core.engine.step_lock import StepLock
from infeng_core.engine.thread import EngineThread
from infeng_core.engine.watchdog import Moment
from infeng_core.errors import UsageError


class Driver:
    """Runs steps until callers have their results. Any thread may call any method."""

    def __init__(
        self,
        step: Callable[[], bool],
        idle: Callable[[], bool],
        in_flight: InFlight,
        lifetime: Lifetime,
        nice: int = 0,
    ) -> None:
        """Start without running steps.

        step: runs one; returns whether there was anything to do. idle: called by the engine's own thread after a step
        with nothing to do; returns whether it may have more work. Both are called in turns of ``lock``. nice: added to
        the niceness of the engine's own thread.
        """
        self.lock = StepLock()
        self._step = step
        self._idle = idle
        self._in_flight = in_flight
        self._lifetime = lifetime
        self._nice = nice
        self._thread: EngineThread | None = None

    @property
    def is_started(self) -> bool:
        """Whether the engine's own thread runs the steps."""
        return self._thread is not None

    def moment(self) -> Moment | None:
        """Return the running turn or call of ``on_step``; None between two. Any thread may ask."""
        if (current := self.lock.current) is not None:
            return *current, ""
        thread = self._thread
        callback = None if thread is None else thread.callback
        return None if thread is None or callback is None else (callback, thread.ident, "on_step")

    def start(self, on_step: Callable[[], object] | None) -> None:
        """Start the engine's own thread, which runs the steps; raises UsageError if it runs already."""
        if self._thread is not None:
            raise UsageError("engine", "it was started already", "call stop() first")
        self._thread = EngineThread(
            lambda: self.lock.run(self._advance),
            on_step,
            lambda error: self.lock.run(partial(self._in_flight.fail_all, error)),
            self._nice,
        )
        self._thread.start()

    def halt(self) -> None:
        """Stop running steps on the engine's own thread after the present one; threads that wait keep waiting."""
        if self._thread is not None:
            self._thread.halt()

    def stop(self) -> None:
        """End the engine's own thread after its step; without one, do nothing."""
        if self._thread is not None:
            if not self._lifetime.is_forked:
                self._thread.stop()
            self._thread = None

    def notify(self) -> None:
        """Wake the engine's own thread, because there is work."""
        if (thread := self._thread) is not None:
            thread.notify()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run steps until ``is_done``; steps that other threads run in between count as well."""

        def work() -> None:
            if not self._step() and not is_done():
                raise self._in_flight.no_batch()

        while not is_done():
            self._lifetime.check_process()  # closing is checked in a turn, after any turn that closes the engine
            if (thread := self._thread) is not None:
                thread.wait(is_done)
            else:
                self.lock.run_until(lambda: is_done() or self._thread is not None, work)

    async def arrival(self, is_done: Callable[[], bool]) -> None:
        """Wait until ``is_done``; raises UsageError unless the engine's own thread runs the steps."""
        while not is_done():
            self._lifetime.check()
            if (thread := self._thread) is None:
                raise UsageError("engine", "no thread runs its steps", "call start() before `async for`")
            await thread.arrival(is_done)

    def _advance(self) -> bool:
        """Run a step; return whether there was anything to do. Raises PluginError if requests wait without a batch."""
        if self._step() or self._idle():
            return True
        if self._in_flight.streams.outputs():
            raise self._in_flight.no_batch()
        return False
