"""Serve jobs on our engine: submitted at their times, with a bounded number in flight."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from infeng_bench.stats.contention import NOTHING, Waits
from infeng_bench.stats.summary import latencies, rate_within
from infeng_core.api import Request, SamplingParams

if TYPE_CHECKING:
    from infeng_core.api import Engine, Stream

PAUSE = 0.0005  # seconds between two steps while all requests wait for their adapters


@dataclass(frozen=True)
class Job:
    """A request: its time in seconds after the beginning, its prompt's ids and its new tokens."""

    at: float
    prompt: Sequence[int]
    new: int
    adapter: str | None = None
    temperature: float = 0.0
    seed: int | None = None

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Job:
        """Read the form of ``to_dict``; raises KeyError, TypeError or ValueError for another form."""
        return Job(float(data["at"]), [int(token) for token in data["prompt"]], int(data["new"]), data["adapter"])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of a request for an engine's process, which answers greedily."""
        return {"at": self.at, "prompt": list(self.prompt), "new": self.new, "adapter": self.adapter}


@dataclass(eq=False)
class Trace:
    """The course of one request; times are seconds after the beginning."""

    job: Job
    admitted: float = 0.0  # when it was submitted to the engine
    tokens: list[float] = field(default_factory=list)  # time of each new token
    ids: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def since(self, is_closed: bool) -> float:
        """Return the time from which latencies count: the arrival, or the admission in a closed loop."""
        return self.admitted if is_closed else self.job.at


@dataclass(frozen=True)
class Served:
    """All requests of one round on one engine, and the time and memory of its process."""

    traces: Sequence[Trace]
    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    waits: Waits = NOTHING  # of the engine's threads; NOTHING if not measured

    @staticmethod
    def of(jobs: Sequence[Job], answer: Mapping[str, Any]) -> Served:
        """Read the form of ``to_dict``; raises KeyError, TypeError or ValueError for another form."""
        pairs = zip(jobs, answer["requests"], strict=True)
        traces = [Trace(job, float(one["admitted"]), list(one["times"]), list(one["ids"])) for job, one in pairs]
        return Served(traces, float(answer["seconds"]), float(answer["cpu_seconds"]), int(answer["peak_rss_bytes"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of an engine's process."""
        return {
            "requests": [{"admitted": one.admitted, "times": one.tokens, "ids": one.ids} for one in self.traces],
            "seconds": self.seconds,
            "tokens_per_s": sum(len(trace.ids) for trace in self.traces) / self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def serve(
    engine: Engine, jobs: Sequence[Job], places: float = math.inf, done: Callable[[], object] = lambda: None
) -> list[Trace]:
    """Run the engine until every job, in order of arrival, is answered; call ``done`` after each.

    places: most jobs in flight.
    """
    traces = [Trace(job) for job in jobs]
    waiting = deque(traces)
    running: list[tuple[Trace, Stream]] = []
    try:
        _run(engine, waiting, running, places, done)
    finally:
        for _, stream in running:
            stream.cancel()
    return traces


def _run(
    engine: Engine,
    waiting: deque[Trace],
    running: list[tuple[Trace, Stream]],
    places: float,
    done: Callable[[], object],
) -> None:
    """Run steps until ``waiting`` and ``running`` are empty."""
    begin = time.perf_counter()
    while waiting or running:
        now = time.perf_counter() - begin
        while waiting and waiting[0].job.at <= now and len(running) < places:
            trace = waiting.popleft()
            trace.admitted = now
            running.append((trace, _submit(engine, trace.job)))
        if not running:
            time.sleep(max(0.0, waiting[0].job.at - (time.perf_counter() - begin)))
            continue
        if not engine.step():
            time.sleep(PAUSE)
        now = time.perf_counter() - begin
        for trace, stream in running:
            for event in stream.pending():
                trace.tokens += [now] * len(event.token_ids)
                trace.ids += event.token_ids
                if event.completion is not None:
                    trace.drafted = event.completion.usage.drafted_tokens
                    trace.accepted = event.completion.usage.accepted_tokens
        for _ in filter(lambda one: one[1].finished, running):
            done()
        running[:] = [(trace, stream) for trace, stream in running if not stream.finished]


def summary(traces: Sequence[Trace], *, is_closed: bool = False) -> dict[str, Any]:
    """Return the figures, named as in ``vllm bench serve``.

    Latencies count from a request's arrival, or from its admission in a closed loop. TPOT: a request's mean time per
    token after its first. ITL: the time between two steps that gave a request tokens. ``prefill_tokens_per_s``: prompt
    tokens over the time in which some admitted request had no token yet. ``decode_tokens_per_s``: new tokens after the
    first over the time in which some request was between its first and last token.
    """
    return {**rates(traces), **delays(traces, is_closed=is_closed)}


def rates(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return counts of requests and tokens, and their rates."""
    duration = max(trace.tokens[-1] for trace in traces)
    prompts = sum(len(trace.job.prompt) for trace in traces)
    new, firsts = sum(len(trace.tokens) for trace in traces), [trace.tokens[0] for trace in traces]
    return {
        "completed": len(traces),
        "duration": duration,
        "total_input_tokens": prompts,
        "total_output_tokens": new,
        "request_throughput": len(traces) / duration,
        "output_throughput": new / duration,
        "total_token_throughput": (prompts + new) / duration,
        **rate_within("prefill", prompts, [trace.admitted for trace in traces], firsts),
        **rate_within("decode", new - len(traces), firsts, [trace.tokens[-1] for trace in traces]),
    }


def delays(traces: Sequence[Trace], *, is_closed: bool = False) -> dict[str, Any]:
    """Return the latencies of traces of one or several rounds."""
    several = [trace for trace in traces if len(trace.tokens) > 1]
    gaps = [late - early for trace in traces for early, late in pairwise(trace.tokens) if late > early]
    return {
        **latencies("ttft", [trace.tokens[0] - trace.since(is_closed) for trace in traces]),
        **latencies("tpot", [(t.tokens[-1] - t.tokens[0]) / (len(t.tokens) - 1) for t in several]),
        **latencies("itl", gaps),
        **latencies("e2el", [trace.tokens[-1] - trace.since(is_closed) for trace in traces]),
    }


def _submit(engine: Engine, job: Job) -> Stream:
    params = SamplingParams(temperature=job.temperature, max_tokens=job.new, ignore_eos=True, seed=job.seed)
    return engine.submit(Request(tuple(job.prompt), params, adapter=job.adapter))
