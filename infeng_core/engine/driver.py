"""Which thread runs the steps: the ones that wait for their results, or one of the engine's own."""

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
    """Runs steps until callers have what they wait for. Any thread may call any method."""

    def __init__(
        self, step: Callable[[], bool], idle: Callable[[], bool], in_flight: InFlight, lifetime: Lifetime
    ) -> None:
        """Run nothing yet.

        step: runs one; returns whether there was anything to do. idle: what the engine's own thread does when there was
        nothing; returns whether there may be more. Both are called in turns of ``lock``.
        """
        self.lock = StepLock()
        self._step = step
        self._idle = idle
        self._in_flight = in_flight
        self._lifetime = lifetime
        self._thread: EngineThread | None = None

    @property
    def is_started(self) -> bool:
        """Whether the engine's own thread runs the steps."""
        return self._thread is not None

    def moment(self) -> Moment | None:
        """Return what is under way, a turn or a call of ``on_step``; None for nothing. Any thread may ask."""
        if (current := self.lock.current) is not None:
            return *current, ""
        thread = self._thread
        callback = None if thread is None else thread.callback
        return None if thread is None or callback is None else (callback, thread.ident, "on_step")

    def start(self, on_step: Callable[[], object] | None) -> None:
        """Let a thread of the engine's own run the steps; raises UsageError where one does already."""
        if self._thread is not None:
            raise UsageError("engine", "it was started already", "call stop() first")
        self._thread = EngineThread(
            lambda: self.lock.run(self._advance),
            on_step,
            lambda error: self.lock.run(partial(self._in_flight.fail_all, error)),
        )
        self._thread.start()

    def halt(self) -> None:
        """Let the engine's own thread run no step after the one that runs; who waits for others goes on waiting."""
        if self._thread is not None:
            self._thread.halt()

    def stop(self) -> None:
        """End the engine's own thread after its step; without one this does nothing."""
        if self._thread is not None:
            if not self._lifetime.is_forked:
                self._thread.stop()
            self._thread = None

    def notify(self) -> None:
        """Tell the engine's own thread that there is something to do."""
        if (thread := self._thread) is not None:
            thread.notify()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run steps until ``is_done``; steps that other threads run in between count as well."""

        def work() -> None:
            if not self._step() and not is_done():
                raise self._in_flight.no_batch()

        while not is_done():
            self._lifetime.check_process()  # whether it is closed is seen in a turn, after any that closes it
            if (thread := self._thread) is not None:
                thread.wait(is_done)
            else:
                self.lock.run_until(lambda: is_done() or self._thread is not None, work)

    async def arrival(self, is_done: Callable[[], bool]) -> None:
        """Wait until ``is_done``; raises UsageError where no thread of the engine's own runs the steps."""
        while not is_done():
            self._lifetime.check()
            if (thread := self._thread) is None:
                raise UsageError("engine", "no thread runs its steps", "call start() before `async for`")
            await thread.arrival(is_done)

    def _advance(self) -> bool:
        """Run a step; returns whether there was anything to do, raises PluginError where requests wait in vain."""
        if self._step() or self._idle():
            return True
        if self._in_flight.streams.outputs():
            raise self._in_flight.no_batch()
        return False
