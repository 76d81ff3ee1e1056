"""Asks the logit processors of a batch while it runs, on a thread of their own, and waits for none that is slow.

A request whose answer is not there draws nothing in that step: it rides in the next one again, and is asked again.
Where the system has no more threads, the step asks by itself and waits for all.

Ctrl-C may come between any two lines of the callers: a flag tells what is done, and no lock is held meanwhile.
"""

from __future__ import annotations

import _thread
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple

from infeng_core.batch import Batch, Processors, RunningRequest
from infeng_core.errors import InfengError
from infeng_core.log import get_logger
from infeng_core.requests.processor_arrays import Answer, ProcessorArrays, guesses

_log = get_logger(__name__)

PATIENCE = 0.02
"""Seconds that a step waits for processors once its logits are there, while others of the batch could go on ..."""

PATIENCE_ALONE = 0.1
"""... and where no other could: requests that arrive meanwhile wait as long."""

SLOW = 0.005
"""Seconds of an answer, on average, from which on requests that could go on do not wait for it."""

LOST = 60.0
"""Seconds of one call of a processor after which its thread is given up, and its request ends."""

_FORGOTTEN = 0.1
"""Seconds after which flags are looked at again, should the bell have been heard and forgotten."""


class ProcessorCall(NamedTuple):
    """The question to one request of a batch."""

    row: int
    """The first of the sampled rows that it draws from."""
    sequence: RunningRequest
    processors: Processors
    guesses: tuple[int, ...]


class PendingCalls:
    """A batch whose processors are being asked."""

    def __init__(self, batch: Batch) -> None:
        """Ask those of ``batch``, in ``run``."""
        self.batch = batch
        self._questions, self._has_others = _questions(batch)
        self._answers: dict[int, Answer] = {}
        self._failure: BaseException | None = None
        self._is_done = self._is_left = False
        self._left_quick = sum(question.processors.cost < SLOW for question in self._questions)
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def run(self, worker: Worker) -> None:
        """Ask, the quickest so far first; once no request waits any more, the rest is left to a later step."""
        try:
            for question in sorted(self._questions, key=lambda one: one.processors.cost):
                if self._is_left:
                    break
                worker.asked = question, perf_counter()
                self._answers[question.row] = _answer(question)
                self._left_quick -= 1
                if not self._left_quick:
                    self._ring()
        except BaseException as error:
            self._failure = error
        worker.asked = None
        self._is_done = True
        self._ring()

    def _ring(self) -> None:
        if self._bell.locked():
            self._bell.release()

    def result(self) -> ProcessorArrays:
        """Return what they said in time; raises what they did that is no answer."""
        begin = perf_counter()
        while not self._is_done:
            is_alone = not self._has_others and not self._answers
            if self._left_quick <= 0 and not is_alone:
                break
            left = begin + (PATIENCE_ALONE if is_alone else PATIENCE) - perf_counter()
            if left <= 0:
                break
            self._bell.acquire(timeout=min(left, _FORGOTTEN))
        self._is_left = True
        if self._failure is not None:
            raise self._failure
        return ProcessorArrays(self.batch, self._answers.copy())


class Worker:
    """The thread that asks."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.asked: tuple[ProcessorCall, float] | None = None
        """The question that is being asked, and since when."""
        self.work: SimpleQueue[PendingCalls | None] = SimpleQueue()
        self.thread: int | None = None

    def start(self) -> None:
        """Start the thread; raises RuntimeError where the system has no more."""
        self.thread = _thread.start_new_thread(_serve, (self,))


class ProcessorThread:
    """Has the thread, from the first batch on."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._worker: Worker | None = None
        self._has_warned = False

    @property
    def thread(self) -> int | None:
        """The thread that asks; None before the first batch, and where none can start."""
        return None if self._worker is None else self._worker.thread

    def submit(self, batch: Batch) -> PendingCalls:
        """Begin to ask the processors of ``batch``; ask them now where no thread can start."""
        self._give_up_lost()
        pending, worker = PendingCalls(batch), self._worker or self._started()
        if worker is None:
            pending.run(Worker())
        else:
            worker.work.put(pending)
        return pending

    def close(self) -> None:
        """Let the thread end."""
        if self._worker is not None:
            self._worker.work.put(None)
            self._worker = None

    def _started(self) -> Worker | None:
        """Start the thread and return it; None where the system has no more, and a later batch tries again."""
        worker = Worker()
        try:
            worker.start()
        except RuntimeError as error:
            if not self._has_warned:
                _log.warning("steps wait for logit processors", reason=str(error), remedy="allow more threads")
                self._has_warned = True
            return None
        self._worker = worker
        return worker

    def _give_up_lost(self) -> None:
        """Leave the thread alone whose processor does not come back, and let that request end."""
        asked = None if self._worker is None else self._worker.asked
        if asked is not None and perf_counter() - asked[1] > LOST:
            asked[0].processors.lose()
            self.close()  # for when it comes back


def _questions(batch: Batch) -> tuple[list[ProcessorCall], bool]:
    """Return what is asked, and whether the batch has requests that nothing is asked of."""
    found: list[ProcessorCall] = []
    row, has_others = 0, False
    for segment in batch.segments:
        first, row = row + segment.known, row + segment.sampled
        processors = segment.sequence.processors
        if processors is not None and first < row:
            found.append(ProcessorCall(first, segment.sequence, processors, tuple(guesses(batch, segment))))
        else:
            has_others = True
    return found, has_others


def _answer(question: ProcessorCall) -> Answer:
    try:
        return question.processors.rows(question.sequence, question.guesses)
    except InfengError as error:
        return error


def _serve(worker: Worker) -> None:
    while (pending := worker.work.get()) is not None:
        pending.run(worker)
        del pending  # which holds the batch
