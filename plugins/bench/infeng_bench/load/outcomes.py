"""Outcomes of many requests, in arrays with room for millions, and the figures computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_bench.load.requests import Reply
from infeng_bench.load.traffic import ABSENT, GREEDY, Traffic
from infeng_bench.stats import fairness
from infeng_bench.stats.summary import latencies, rate_within

Seconds = NDArray[np.float64]

QUANTILES = (0.0, 0.01, 0.05, *(k / 20 for k in range(2, 19)), 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Quantiles of TTFT in results, for a chart."""


@dataclass(frozen=True)
class Targets:
    """The latency targets of goodput, and the limit beyond which a request has starved."""

    ttft: float = 2.0  # seconds to the first token
    tpot: float = 0.2  # mean seconds for each token after it
    patience: float = 100.0
    """A request starved if its wait for the first step exceeds ``ttft`` and this many times the median wait."""


class Gaps(Protocol):
    """The inter-token latencies of all requests."""

    def figures(self) -> dict[str, float]:
        """Return ``{mean,median,std,p99}_itl_ms``; {} without latencies."""


class ExactGaps:
    """Inter-token latencies of requests whose number is small."""

    def __init__(self, replies: Sequence[Reply] = ()) -> None:
        """Take the times between two steps that gave a request tokens."""
        self._seconds = [
            late - early for one in replies for early, late in pairwise(one.times) if one.is_done and late > early
        ]

    def figures(self) -> dict[str, float]:
        """Return ``{mean,median,std,p99}_itl_ms``; {} without latencies."""
        return latencies("itl", self._seconds)


@dataclass(eq=False)
class Outcomes:
    """The outcomes of ``traffic``, arrays of shape (requests,); times are seconds after the beginning, or NaN."""

    traffic: Traffic
    arrived: Seconds  # from which latencies count: the arrival, or the submission in a closed loop
    begun: Seconds  # first step
    first: Seconds  # first token
    last: Seconds  # last token
    tokens: NDArray[np.int32]  # new tokens
    cached: NDArray[np.int32]  # prompt tokens found in the prefix cache
    is_done: NDArray[np.bool_]  # whether the answer was complete
    refused: dict[str, int] = field(default_factory=dict)  # number of unanswered requests by reason
    refusals: list[float] = field(default_factory=list)  # seconds until each refusal
    gaps: Gaps = field(default_factory=ExactGaps)

    @staticmethod
    def of(replies: Sequence[Reply], traffic: Traffic | None = None, *, is_closed: bool = False) -> Outcomes:
        """Return what became of requests. traffic: of which they are. is_closed: latencies count from the sending."""
        found = Outcomes.empty(Traffic.of([one.job for one in replies]) if traffic is None else traffic)
        found.gaps = ExactGaps(replies)
        for place, one in enumerate(replies):
            if is_closed:
                found.arrived[place] = one.sent
            if not math.isnan(one.refused):
                found.refusals.append(one.refused)
            if one.failure:
                found.refuse(one.failure)
                continue
            found.begun[place], found.first[place], found.last[place] = one.begun, one.times[0], one.times[-1]
            found.tokens[place], found.cached[place], found.is_done[place] = one.count, one.cached, True
        return found

    @staticmethod
    def empty(traffic: Traffic) -> Outcomes:
        """Return empty outcomes of ``traffic``."""
        count = len(traffic)
        begun, first, last = (np.full(count, np.nan) for _ in range(3))
        tokens, cached = (np.zeros(count, np.int32) for _ in range(2))
        return Outcomes(traffic, traffic.at.copy(), begun, first, last, tokens, cached, np.zeros(count, np.bool_))

    def refuse(self, reason: str) -> None:
        """Count a request that was not answered."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    @property
    def ttft(self) -> Seconds:
        """Seconds to the first token, of every request that got one."""
        return (self.first - self.arrived)[~np.isnan(self.first)]

    def only(self, mask: NDArray[Any]) -> Outcomes:
        """Return the outcomes of some requests, by a mask or indices, without gaps and refusals."""
        names = ("arrived", "begun", "first", "last", "tokens", "cached", "is_done")
        return Outcomes(self.traffic.only(mask), *(getattr(self, name)[mask] for name in names))


def figures(outcomes: Outcomes, targets: Targets) -> dict[str, Any]:
    """Return the figures of a run, named as in ``vllm bench serve``, and figures of fairness.

    ``prefill_tokens_per_s``: prompt tokens over the time in which some request was between its first step and its first
    token. ``decode_tokens_per_s``: new tokens after the first over the time in which some request was between its first
    and last token. TTFT and end-to-end latency count from ``Outcomes.arrived``. TPOT: a request's mean time per token
    after its first. ITL: the time between two steps that gave a request tokens. ``goodput``: requests per second that
    met both targets; ``goodput_share``: their share of all. ``jain``: see fairness.py. ``starved``: see
    ``Targets.patience``.
    """
    done = outcomes.only(outcomes.is_done)
    found: dict[str, Any] = {"completed": len(done.traffic), "refused": dict(outcomes.refused)}
    found["starved"] = starved(outcomes, targets)
    if not len(done.traffic):
        return found
    good = int(_is_good(done, targets).sum())
    found |= rates(outcomes)
    return found | {
        "goodput": good / found["duration"],
        "goodput_share": good / len(outcomes.traffic),
        **delays(done),
        **outcomes.gaps.figures(),
        "jain": fairness.jain(fairness.shares(outcomes)),
        "prefix_hit_share": int(done.cached.sum()) / found["total_input_tokens"],
    }


def rates(outcomes: Outcomes) -> dict[str, Any]:
    """Return counts of answered requests and their tokens, and their rates."""
    done = outcomes.only(outcomes.is_done)
    completed, prompts, new = len(done.traffic), int(done.traffic.prompt.sum()), int(done.tokens.sum())
    duration = float(done.last.max() - outcomes.arrived.min())
    return {
        "completed": completed,
        "duration": duration,
        "total_input_tokens": prompts,
        "total_output_tokens": new,
        "request_throughput": completed / duration,
        "output_throughput": new / duration,
        "total_token_throughput": (prompts + new) / duration,
        **rate_within("prefill", prompts, np.where(np.isnan(done.begun), done.arrived, done.begun), done.first),
        **rate_within("decode", new - completed, done.first, done.last),
    }


def latencies_of(replies: Sequence[Reply], *, is_closed: bool) -> dict[str, Any]:
    """Return the latencies of answered requests, of one or several rounds."""
    found = Outcomes.of(replies, is_closed=is_closed)
    return {**delays(found), **found.gaps.figures()}


def delays(done: Outcomes) -> dict[str, float]:
    """Return ``{mean,median,std,p99}_{ttft,tpot,e2el}_ms`` of answered requests."""
    several = done.tokens > 1
    return {
        **latencies("ttft", done.first - done.arrived),
        **latencies("tpot", (done.last - done.first)[several] / (done.tokens[several] - 1)),
        **latencies("e2el", done.last - done.arrived),
    }


def groups(outcomes: Outcomes, targets: Targets) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``per_tenant`` and ``per_adapter``, the figures of each one's requests; {} for a single tenant."""
    traffic = outcomes.traffic
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if len(traffic.tenants) > 1:
        found["per_tenant"] = {
            name: _group(outcomes.only(traffic.tenant == k), targets) for k, name in enumerate(traffic.tenants)
        }
    if traffic.adapters:
        named = [*enumerate(traffic.adapters), (ABSENT, "base")]
        shown = {name: _group(outcomes.only(traffic.adapter == k), targets) for k, name in named}
        found["per_adapter"] = {name: one for name, one in shown.items() if one["requests"]}
    return found


def ttft_curve(outcomes: Outcomes) -> list[float]:
    """Return the TTFT in milliseconds at each of QUANTILES; [] if no request got a token."""
    ttft = outcomes.ttft
    return [1000 * float(value) for value in np.quantile(ttft, QUANTILES)] if len(ttft) else []


def starved(outcomes: Outcomes, targets: Targets) -> int:
    """Return the number of requests whose wait exceeded ``patience`` times the median wait and the TTFT target.

    The wait ends with the first step or, over HTTP, where that is unknown, with the first token.
    """
    moment = outcomes.first if np.isnan(outcomes.begun).all() else outcomes.begun
    waits = (moment - outcomes.arrived)[~np.isnan(moment)]
    if not len(waits):
        return 0
    return int((waits > max(targets.patience * float(np.median(waits)), targets.ttft)).sum())


def _group(own: Outcomes, targets: Targets) -> dict[str, Any]:
    done = own.only(own.is_done)
    found: dict[str, Any] = {
        "requests": len(own.traffic),
        "completed": len(done.traffic),
        "input_tokens": int(done.traffic.prompt.sum()),
        "output_tokens": int(done.tokens.sum()),
    }
    if len(done.traffic):
        found |= {**delays(done), "goodput_share": float(_is_good(done, targets).sum()) / len(own.traffic)}
    return found


def _is_good(done: Outcomes, targets: Targets) -> NDArray[np.bool_]:
    after = np.maximum(done.tokens - 1, 1)
    good: NDArray[np.bool_] = (done.first - done.arrived <= targets.ttft) & (
        (done.last - done.first) / after <= targets.tpot
    )
    return good


def victims_ratio(served: Outcomes, alone: Outcomes) -> float | None:
    """Return the p99 TTFT of the other tenants with the greedy tenant, over that without; None without tokens."""
    greedy = list(served.traffic.tenants).index(GREEDY)
    beside, without = served.only(served.traffic.tenant != greedy).ttft, alone.ttft
    if not len(beside) or not len(without):
        return None
    return float(np.quantile(beside, 0.99) / np.quantile(without, 0.99))
