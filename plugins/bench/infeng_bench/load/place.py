"""A place that answers requests, an engine of this process or a server: how requests come to it and are followed."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from infeng_bench.load.requests import Job, Reply
from infeng_bench.stats.summary import percentile
from infeng_core.api import InfengError


class AnswerError(InfengError):
    """A request was not answered."""


@dataclass(frozen=True)
class Effort:
    """The cost and the delay of the thread that sends requests."""

    seconds: float  # from the beginning to the last answer
    cpu_seconds: float  # of the thread
    lag_p99: float  # seconds between a request's due time and its sending, 99th percentile

    @property
    def cpu_share(self) -> float:
        """CPU time over wall time."""
        return self.cpu_seconds / self.seconds


class Place(ABC):
    """Sends each request when it is due, whether earlier ones were answered or not, and follows the answers."""

    at_once: float = math.inf  # overdue requests sent before answers are looked at

    def __init__(self, name: str, vocab: int, context: int, timeout: float = math.inf) -> None:
        """Name it for errors.

        vocab: bound of the prompts' ids. context: most positions of a request. timeout: seconds without an event after
        which there is none to come.
        """
        self.name, self.vocab, self.context, self.timeout = name, vocab, context, timeout
        self._origin = time.perf_counter()

    @abstractmethod
    def prepared(self, job: Job) -> Any:
        """Return a request in the form of ``send``, made before its time so that this cost is not measured."""

    @abstractmethod
    def send(self, reply: Reply, made: Any) -> None:
        """Send a request; what becomes of it comes to ``reply``. made: the result of ``prepared``."""

    @abstractmethod
    def pump(self, wait: float) -> list[Reply]:
        """Let requests be answered for at most ``wait`` seconds, or until some get something; return those."""

    @abstractmethod
    def drop(self, reply: Reply) -> None:
        """Leave in the middle of an answer."""

    @abstractmethod
    def running(self) -> int:
        """Return how many requests run."""

    @abstractmethod
    def settle(self) -> None:
        """Take what has come already, and complete the records of answers that have ended."""

    def alone(self) -> AbstractContextManager[None]:
        """Reduce disturbances by this process while requests are measured."""
        return contextlib.nullcontext()

    def error(self, why: str) -> InfengError:
        """Return the error to raise."""
        return AnswerError(self.name, why, "look at its log")

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._origin

    def ask(self, job: Job) -> Reply:
        """Send one request now."""
        reply, made = Reply(job), self.prepared(job)
        self.send(reply, made)
        return reply

    def whole(self, job: Job) -> Reply:
        """Send a request and return its whole answer; raises an error if it fails."""
        reply = self.ask(job)
        self.until(lambda: reply.is_over)
        self.settle()
        self.check([reply])
        return reply

    def check(self, replies: Sequence[Reply]) -> None:
        """Raise an error unless all were answered."""
        for reply in replies:
            if reply.failure:
                raise self.error(f"a request was not answered: {reply.failure}")

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let requests be answered until ``is_so()``; raises an error after ``timeout`` without an event."""
        heard = self.now()
        while not is_so():
            if self.pump(self.timeout):
                heard = self.now()
            elif self.now() > heard + self.timeout:
                raise self.error(f"no answer in {self.timeout:g} s")

    def run(
        self, jobs: Sequence[Job], places: float = math.inf, done: Callable[[], object] = lambda: None
    ) -> tuple[list[Reply], Effort]:
        """Send all requests, which are in order of time, at most ``places`` at a time, and wait for the last answer.

        The beginning is now. done: called after each answer. Raises an error after ``timeout`` without an event.
        """
        replies = [Reply(job) for job in jobs]
        coming = deque((reply, self.prepared(reply.job)) for reply in replies)
        with self.alone():
            cpu, self._origin = time.thread_time(), time.perf_counter()
            for _ in self._ended(coming, places):
                done()
            seconds, taken = self.now(), time.thread_time() - cpu
        self.settle()
        lags = [reply.sent - reply.job.at for reply in replies]
        return replies, Effort(seconds, taken, percentile(lags, 0.99) if lags else 0.0)

    def _ended(self, coming: deque[tuple[Reply, Any]], places: float) -> Iterator[Reply]:
        """Yield each request that has ended."""
        running: set[Reply] = set()
        heard = 0.0
        while coming or running:
            sent = 0
            while coming and sent < self.at_once and len(running) < places and coming[0][0].job.at <= self.now():
                reply, made = coming.popleft()
                self.send(reply, made)
                sent += 1
                if reply.is_over:
                    yield reply
                else:
                    running.add(reply)
            is_full = not coming or len(running) >= places
            found = self.pump(min(self.timeout, self.timeout if is_full else coming[0][0].job.at - self.now()))
            if found or not running:
                heard = self.now()
            for reply in found:
                if reply.is_over and reply in running:
                    running.discard(reply)
                    yield reply
            if self.now() > heard + self.timeout:
                raise self.error(f"no answer in {self.timeout:g} s")
