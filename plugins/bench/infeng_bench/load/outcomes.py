"""What became of many requests, in arrays: a million of them fit, and figures come from them by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_bench.load.traffic import ABSENT, GREEDY, Traffic
from infeng_bench.stats import fairness
from infeng_bench.stats.summary import latencies, rate_within

Seconds = NDArray[np.float64]

QUANTILES = (0.0, 0.01, 0.05, *(k / 20 for k in range(2, 19)), 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Shares of the requests at which results give the time to first token, for a chart."""


@dataclass(frozen=True)
class Targets:
    """What a request must keep to count as served well, and from when on one has starved."""

    ttft: float = 2.0  # seconds to the first token
    tpot: float = 0.2  # mean seconds for each token after it
    patience: float = 100.0
    """A request starved if it waited this many times the median wait, and longer than ``ttft``, for its first step."""


class Gaps:
    """Times between two tokens: exact count, mean and deviation; quantiles to a quarter of a percent.

    Bins are a factor of 1.005 wide, from a microsecond to more than a day, so that memory does not grow with tokens.
    """

    _LOW, _STEP, _BINS = 1e-6, math.log(1.005), 5120

    def __init__(self) -> None:
        """Hold none."""
        self._counts = [0] * self._BINS
        self._total, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add a time that ``count`` pairs of tokens had between them."""
        self._counts[self._bin(seconds)] += count
        self._total += count
        self._sum += seconds * count
        self._squares += seconds * seconds * count

    def add_all(self, ascending: Sequence[float], count: int) -> None:
        """Add several times, each ``count`` times over."""
        if not ascending:
            return
        edge = -math.inf
        for seconds in ascending:
            if seconds >= edge:
                place = self._bin(seconds)
                edge = self._LOW * math.exp((place + 1) * self._STEP)
            self._counts[place] += count
        self._total += len(ascending) * count
        self._sum += sum(ascending) * count
        self._squares += sum([seconds * seconds for seconds in ascending]) * count

    def _bin(self, seconds: float) -> int:
        return min(int(math.log(max(seconds, self._LOW) / self._LOW) / self._STEP), self._BINS - 1)

    def __len__(self) -> int:
        return self._total

    def quantile(self, share: float) -> float:
        """Return the time, in seconds, that ``share`` (0 to 1) of them do not exceed: the middle of its bin."""
        place = int(np.searchsorted(np.cumsum(self._counts), max(1.0, share * self._total)))
        return self._LOW * math.exp((place + 0.5) * self._STEP)

    def figures(self) -> dict[str, float]:
        """Return ``{mean,median,std,p99}_itl_ms``; nothing without any."""
        if not self._total:
            return {}
        mean = self._sum / self._total
        return {
            "mean_itl_ms": 1000 * mean,
            "median_itl_ms": 1000 * self.quantile(0.5),
            "std_itl_ms": 1000 * math.sqrt(max(0.0, self._squares / self._total - mean * mean)),
            "p99_itl_ms": 1000 * self.quantile(0.99),
        }


@dataclass(eq=False)
class Outcomes:
    """One entry per request of ``traffic``; moments are seconds after the beginning, NaN for what never was."""

    traffic: Traffic
    arrived: Seconds  # from when on latencies count: its arrival or, in a closed loop, when it was handed in
    begun: Seconds  # when its first row was computed
    first: Seconds
    last: Seconds  # when it had its first and its last token
    tokens: NDArray[np.int32]  # new tokens that it had
    cached: NDArray[np.int32]  # tokens of its prompt that were in the cache already
    is_done: NDArray[np.bool_]  # whether it was answered to its end
    refused: dict[str, int] = field(default_factory=dict)  # requests that were not answered, by the reason
    refusals: list[float] = field(default_factory=list)
    """Seconds that each refusal of the engine, or the server, took."""
    gaps: Gaps = field(default_factory=Gaps)

    @staticmethod
    def of(traffic: Traffic) -> Outcomes:
        """Return the outcomes of requests of which none has come yet."""
        count = len(traffic)
        begun, first, last = (np.full(count, np.nan) for _ in range(3))
        tokens, cached = (np.zeros(count, np.int32) for _ in range(2))
        return Outcomes(traffic, traffic.at.copy(), begun, first, last, tokens, cached, np.zeros(count, np.bool_))

    def refuse(self, reason: str) -> None:
        """Count a request that was not answered."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    @property
    def ttft(self) -> Seconds:
        """Seconds to the first token, of every request that had one."""
        return (self.first - self.arrived)[~np.isnan(self.first)]

    def only(self, mask: NDArray[Any]) -> Outcomes:
        """Return the outcomes of some of the requests, by a mask or by their places; gaps and refusals are left out."""
        names = ("arrived", "begun", "first", "last", "tokens", "cached", "is_done")
        return Outcomes(self.traffic.only(mask), *(getattr(self, name)[mask] for name in names))


def figures(outcomes: Outcomes, targets: Targets) -> dict[str, Any]:
    """Return the figures of a run by the names of ``vllm bench serve``, and those of fairness.

    ``prefill_tokens_per_s`` are the prompts' tokens over the time in which some request was between its first step and
    its first token, ``decode_tokens_per_s`` the others over the time in which one was between first and last.
    TTFT and end-to-end latency count from ``Outcomes.arrived``. TPOT is a request's mean time per token after its
    first, ITL the time between two steps that gave it tokens. ``goodput`` are requests a second that kept both targets,
    ``goodput_share`` their share of all. ``jain`` is told in fairness.py, ``starved`` by ``Targets.patience``.
    """
    done = outcomes.only(outcomes.is_done)
    completed = len(done.traffic)
    found: dict[str, Any] = {"completed": completed, "refused": dict(outcomes.refused)}
    found["starved"] = starved(outcomes, targets)
    if not completed:
        return found
    duration = float(done.last.max() - outcomes.arrived.min())
    prompts, new = int(done.traffic.prompt.sum()), int(done.tokens.sum())
    good = _is_good(done, targets)
    found |= {
        "duration": duration,
        "total_input_tokens": prompts,
        "total_output_tokens": new,
        "request_throughput": completed / duration,
        "output_throughput": new / duration,
        "total_token_throughput": (prompts + new) / duration,
        "goodput": int(good.sum()) / duration,
        "goodput_share": float(good.sum()) / len(outcomes.traffic),
        **rate_within("prefill", prompts, np.where(np.isnan(done.begun), done.arrived, done.begun), done.first),
        **rate_within("decode", new - completed, done.first, done.last),
        **delays(done),
        **outcomes.gaps.figures(),
        "jain": fairness.jain(fairness.shares(outcomes)),
        "prefix_hit_share": int(done.cached.sum()) / prompts,
    }
    return found


def delays(done: Outcomes) -> dict[str, float]:
    """Return ``{mean,median,std,p99}_{ttft,tpot,e2el}_ms`` of requests that were answered."""
    several = done.tokens > 1
    return {
        **latencies("ttft", done.first - done.arrived),
        **latencies("tpot", (done.last - done.first)[several] / (done.tokens[several] - 1)),
        **latencies("e2el", done.last - done.arrived),
    }


def groups(outcomes: Outcomes, targets: Targets) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``per_tenant`` and ``per_adapter``: the figures of each one's requests, where there are several."""
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
    """Return the milliseconds to the first token at each of QUANTILES; nothing without any."""
    ttft = outcomes.ttft
    return [1000 * float(value) for value in np.quantile(ttft, QUANTILES)] if len(ttft) else []


def starved(outcomes: Outcomes, targets: Targets) -> int:
    """Return how many requests starved: waited ``patience`` times the median wait, and longer than the TTFT target.

    The wait is that for the first step or, where an engine behind HTTP does not tell it, for the first token.
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
    """Return the 99th percentile of the other tenants' TTFT beside the greedy one over that without him."""
    greedy = list(served.traffic.tenants).index(GREEDY)
    beside, without = served.only(served.traffic.tenant != greedy).ttft, alone.ttft
    if not len(beside) or not len(without):
        return None
    return float(np.quantile(beside, 0.99) / np.quantile(without, 0.99))
