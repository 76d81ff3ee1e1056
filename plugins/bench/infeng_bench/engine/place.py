"""An engine of this process as a place that answers requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infeng_inspect.api import peak_rss

from infeng_bench.load.place import Place
from infeng_bench.load.requests import Job, Reply, Served
from infeng_bench.stats.contention import Mark
from infeng_core.api import InfengError, Request, SamplingParams

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream

IN_PROCESS = "in_process"  # the name in results of an engine of this process beside others
PAUSE = 0.0005  # seconds between two steps without anything to do
LONGEST = 1.0  # seconds of a pause before the next request


class EnginePlace(Place):
    """Runs the engine's steps between the requests that are sent."""

    def __init__(self, engine: Engine, *, raises: bool = True) -> None:
        """Send requests to ``engine``, whose own thread does not run. raises: whether the error of a request is raised,
        instead of recorded.
        """
        super().__init__("the engine", engine.model.config.vocab, min(engine.limits.context, engine.limits.tokens))
        self.engine, self._raises = engine, raises
        self._running: list[tuple[Reply, Stream]] = []

    def __enter__(self) -> EnginePlace:
        return self

    def __exit__(self, *of_error: object) -> None:
        for _, stream in self._running:
            stream.cancel()
        self._running.clear()

    def prepared(self, job: Job) -> Request:
        """Return the engine's request, greedy unless the job has a temperature, and past end tokens."""
        params = SamplingParams(temperature=job.temperature, max_tokens=job.new, ignore_eos=True, seed=job.seed)
        return Request(tuple(job.prompt), params, job.priority, job.tenant, job.adapter)

    def send(self, reply: Reply, made: Request) -> None:
        """Submit a request."""
        reply.sent = self.now()
        try:
            self._running.append((reply, self.engine.submit(made)))
        except InfengError as error:
            if self._raises:
                raise
            reply.fail(reason(error), self.now())
            reply.refused = self.now() - reply.sent

    def pump(self, wait: float) -> list[Reply]:
        """Run a step, or wait if there is none to run."""
        if not self.engine.step():
            time.sleep(min(PAUSE if self._running else max(0.0, wait), LONGEST))
        now = self.now()
        heard = [reply for reply, stream in self._running if self._taken(reply, stream, now)]
        if any(reply.is_over for reply in heard):
            self._running = [one for one in self._running if not one[0].is_over]
        return heard

    def drop(self, reply: Reply) -> None:
        """Cancel a request."""
        for other, stream in self._running:
            if other is reply:
                stream.cancel()
        self._running = [one for one in self._running if one[0] is not reply]
        reply.fail("dropped", self.now())

    def running(self) -> int:
        """Return how many requests run."""
        return self.engine.load().running

    def settle(self) -> None:
        """Return at once: each step leaves complete records."""

    def _taken(self, reply: Reply, stream: Stream, now: float) -> bool:
        """Take the events of a request; return whether there were any."""
        try:
            events = stream.pending()
        except InfengError as error:
            if self._raises:
                raise
            reply.fail(reason(error), now)
            return True
        for event in events:
            reply.times += [now] * len(event.token_ids)
            reply.ids += event.token_ids
            if event.completion is not None:
                usage = event.completion.usage
                reply.drafted, reply.accepted = usage.drafted_tokens, usage.accepted_tokens
                reply.cached = usage.cached_tokens
                reply.begun = reply.sent + event.completion.timings.queued
                reply.ended = now
        reply.count = len(reply.times)
        return bool(events)


@dataclass(frozen=True)
class InProcess:
    """An engine of this process that serves rounds of requests, as the process of another engine does."""

    engine: Engine
    name: str = IN_PROCESS

    def serve(self, jobs: Sequence[Job], places: int) -> Served:
        """Answer ``jobs``, at most ``places`` at a time; raises InfengError if a request fails."""
        mark, cpu, begin = Mark.now(), time.process_time(), time.perf_counter()
        with EnginePlace(self.engine) as place:
            replies, _ = place.run(jobs, places)
        seconds, taken = time.perf_counter() - begin, time.process_time() - cpu
        return Served(replies, seconds, taken, peak_rss() or 0, mark.waits())


def reason(error: InfengError) -> str:
    """Return the reason under which results count a request's error."""
    return str(getattr(error, "reason", "") or type(error).__name__)
