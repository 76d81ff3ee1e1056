"""An engine as its limits and the costs of its steps, and the requests per second that it can serve."""

from __future__ import annotations

from dataclasses import dataclass

from infeng_bench.costs.step_costs import StepCosts
from infeng_core.api.engines import Limits


@dataclass(frozen=True)
class Machine:
    """An engine: its limits, its step costs and its adapters."""

    limits: Limits
    costs: StepCosts
    max_adapters: int = 16
    invocation: int = 0  # adapters act on this many last tokens of a prompt and on the answer; 0: on the whole prompt

    def capacity(self, prompt: float, new: float) -> float:
        """Return the requests per second that it can serve. prompt, new: mean tokens of a request."""
        limits = self.limits
        room = limits.tokens / max(1.0, prompt + new)
        running = max(1, min(limits.max_segments, limits.max_samples, int(room)))
        return self.costs.capacity(prompt, new, running, limits.max_rows)
