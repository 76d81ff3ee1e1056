"""A thread that runs an engine's steps, and the ways in which threads and asyncio tasks wait for the results."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from infeng_core.adapters.loader import be_nice
from infeng_core.errors import InfengError, PluginError, UsageError
from infeng_core.log import get_logger

if TYPE_CHECKING:
    import asyncio

_log = get_logger(__name__)

_Waiting = deque[tuple[Callable[[], bool], "asyncio.Future[None]"]]


class EngineThread:
    """Runs steps while there is work, and sleeps until ``notify`` otherwise."""

    def __init__(
        self,
        step: Callable[[], bool],
        on_step: Callable[[], object] | None,
        fail: Callable[[InfengError], None],
        nice: int = 0,
    ) -> None:
        """Call ``step``, then ``on_step``, repeatedly; ``fail`` ends all requests with the error of a step.

        nice: added to the thread's niceness, which is its own on Linux.
        """
        self._nice = nice
        self._step = step
        self._on_step = on_step
        self._fail = fail
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._gates: deque[threading.Lock] = deque()  # of threads waiting for the next step
        self._tasks: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        self._is_halted = self._is_stopped = False
        self.callback: object | None = None
        """The running call of ``on_step``."""
        self._thread = threading.Thread(target=self._run, name="infeng-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        atexit.register(self.stop)  # runs before the interpreter ends, which a thread in native code would not notice
        self._thread.start()

    def halt(self) -> None:
        """Run no more steps, and wait for the present one to end; waiting threads keep waiting."""
        self._is_halted = True
        self._bell.put(None)
        if self._thread.ident is not None and not self._is_own_thread:
            self._thread.join()
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """Halt and wake all waiting threads; a second call does nothing."""
        self.halt()
        self._is_stopped = True
        self._tell()

    def notify(self) -> None:
        """Wake the thread, because there is work."""
        self._bell.put(None)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Sleep until ``is_done`` or until it was stopped."""
        if self._is_own_thread:
            raise UsageError("engine", "its own thread would wait for itself", "take what is there with pending()")
        while not (is_done() or self._is_stopped):
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
            if not (is_done() or self._is_stopped):
                gate.acquire()  # released after the next step

    def arrival(self, is_done: Callable[[], bool]) -> asyncio.Future[None]:
        """Return a future of the running event loop that is done after the step that makes ``is_done`` true."""
        import asyncio  # a slow import that engines without tasks do not need

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._tasks.setdefault(loop, deque()).append((is_done, future))
        if is_done() or self._is_stopped:
            future.set_result(None)
        return future

    @property
    def ident(self) -> int:
        """The thread's identifier; 0 before it runs."""
        return self._thread.ident or 0

    @property
    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        be_nice(self._nice)
        while not self._is_halted:
            while not self._bell.empty():
                self._bell.get()
            has_run = False
            try:
                has_run = self._step()
            except InfengError as error:
                self._end_all(error)
            except Exception as error:
                _log.exception("a step failed")
                self._end_all(PluginError("step", f"{type(error).__name__}: {error}", "see the log"))
            self._tell()
            self._call()
            if not has_run:
                self._bell.get()

    def _end_all(self, error: InfengError) -> None:
        try:
            self._fail(error)
        except Exception:
            _log.exception("requests in flight were not ended")

    def _call(self) -> None:
        if self._on_step is None:
            return
        self.callback = object()
        try:
            self._on_step()
        except Exception:
            _log.exception("on_step failed")
        finally:
            self.callback = None

    def _tell(self) -> None:
        """Wake all waiters for a step: each event loop once, for all of its tasks."""
        while self._gates:
            self._gates.popleft().release()
        for loop, waiting in list(self._tasks.items()):
            try:
                loop.call_soon_threadsafe(self._wake, loop, waiting)
            except RuntimeError:  # the loop is closed
                self._tasks.pop(loop, None)

    def _wake(self, loop: asyncio.AbstractEventLoop, waiting: _Waiting) -> None:
        """Wake the loop's tasks that are done; runs on the loop's own thread."""
        for _ in range(len(waiting)):
            is_done, future = waiting.popleft()
            if future.done():
                continue
            if is_done() or self._is_stopped:
                future.set_result(None)
            else:
                waiting.append((is_done, future))
        if not waiting:
            self._tasks.pop(loop, None)
