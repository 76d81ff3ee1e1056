"""A thread that runs an engine's steps, and how others wait for what they bring: threads, and tasks of asyncio."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from infeng_core.errors import InfengError, PluginError, UsageError
from infeng_core.log import get_logger

if TYPE_CHECKING:
    import asyncio

_log = get_logger(__name__)

_Waiting = deque[tuple[Callable[[], bool], "asyncio.Future[None]"]]


class EngineThread:
    """Runs steps while there is something to do, and sleeps until ``notify`` when there is not."""

    def __init__(
        self, step: Callable[[], bool], on_step: Callable[[], object] | None, fail: Callable[[InfengError], None]
    ) -> None:
        """Call ``step``, then ``on_step``, again and again; ``fail`` ends all requests with what a step raises."""
        self._step = step
        self._on_step = on_step
        self._fail = fail
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._gates: deque[threading.Lock] = deque()  # of threads that wait for the next step
        self._tasks: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        self._is_halted = self._is_stopped = False
        self.callback: object | None = None
        """Stands for a call of ``on_step``, while it goes on."""
        self._thread = threading.Thread(target=self._run, name="infeng-engine", daemon=True)

    def start(self) -> None:
        """Begin."""
        atexit.register(self.stop)  # before the interpreter goes, which a thread in native code would not notice
        self._thread.start()

    def halt(self) -> None:
        """Run no step after the one that runs, and wait for that one's end; who waits for others goes on waiting."""
        self._is_halted = True
        self._bell.put(None)
        if self._thread.ident is not None and not self._is_own_thread:
            self._thread.join()
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """Halt and let go of all who wait; calling it again does nothing."""
        self.halt()
        self._is_stopped = True
        self._tell()

    def notify(self) -> None:
        """Tell that there is something to do."""
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
                gate.acquire()  # given back after the next step

    def arrival(self, is_done: Callable[[], bool]) -> asyncio.Future[None]:
        """Return a future of the running event loop that is done after a step that made ``is_done`` true."""
        import asyncio  # which takes a while, and not every engine has tasks

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._tasks.setdefault(loop, deque()).append((is_done, future))
        if is_done() or self._is_stopped:
            future.set_result(None)
        return future

    @property
    def ident(self) -> int:
        """Of the thread; 0 before it runs."""
        return self._thread.ident or 0

    @property
    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
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
        """Wake all who wait for a step: each event loop once, for all of its tasks."""
        while self._gates:
            self._gates.popleft().release()
        for loop, waiting in list(self._tasks.items()):
            try:
                loop.call_soon_threadsafe(self._wake, loop, waiting)
            except RuntimeError:  # it is closed
                self._tasks.pop(loop, None)

    def _wake(self, loop: asyncio.AbstractEventLoop, waiting: _Waiting) -> None:
        """On the loop's own thread: tell the tasks whose turn it is."""
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
