"""Fairness among tenants: the service of each, compared with its share under max-min fairness.

Service is counted as in the Virtual Token Counter (arXiv 2401.00588): a prompt token costs 1, a new token 2. Time is
divided into windows. A tenant's demand in a window is the cost of its requests that arrived by the window's end, minus
the service that it got before; ``max_min`` divides the service of the window into fair shares. A tenant's figure is its
service over its fair shares, summed over the windows with more demand than service, and ``jain`` measures how equal
these figures are. A tenant with little demand that is served at once has 1, and so has a greedy tenant that gets the
rest; a tenant that waits for a greedy one has less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from infeng_bench.load.outcomes import Outcomes

PROMPT_COST, NEW_COST = 1.0, 2.0
WINDOWS = 20
CHUNK = 1 << 17  # requests processed at once

Costs = NDArray[np.float64]


def jain(values: Sequence[float] | Costs) -> float:
    """Return Jain's index (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything, 1 without values."""
    found = np.asarray(values, np.float64)
    squares = float((found**2).sum())
    return float(found.sum()) ** 2 / (len(found) * squares) if squares > 0 else 1.0


def max_min(demands: Costs, supply: float) -> Costs:
    """Divide ``supply`` among ``demands``: the smallest demand is met first, larger ones share the rest."""
    given = np.zeros(len(demands))
    left = supply
    order = np.argsort(demands)
    for place, who in enumerate(order):
        given[who] = min(float(demands[who]), left / (len(order) - place))
        left -= given[who]
    return given


def shares(outcomes: Outcomes) -> Costs:
    """Return the service over the fair share of each tenant with demand, (tenants,)."""
    edges = np.linspace(float(outcomes.arrived.min()), float(np.nanmax(outcomes.last)), WINDOWS + 1)
    asked, served = _cumulative(outcomes, edges)
    had, fair = np.zeros(len(asked)), np.zeros(len(asked))
    for window in range(WINDOWS):
        given = served[:, window + 1] - served[:, window]
        demands = np.maximum(asked[:, window + 1] - served[:, window], given)
        if demands.sum() > given.sum():
            had += given
            fair += max_min(demands, float(given.sum()))
    return had[fair > 0] / fair[fair > 0]


def _cumulative(outcomes: Outcomes, edges: Costs) -> tuple[Costs, Costs]:
    """Return each tenant's cumulative demand and service at each edge, two arrays of (tenants, edges).

    A prompt is served with its first token, new tokens evenly from the first to the last. Unanswered requests have no
    demand.
    """
    count = len(outcomes.traffic.tenants)
    asked, served = np.zeros((count, len(edges))), np.zeros((count, len(edges)))
    answered = np.flatnonzero(~np.isnan(outcomes.first))
    for begin in range(0, len(answered), CHUNK):
        own = outcomes.only(answered[begin : begin + CHUNK])
        prompt = PROMPT_COST * own.traffic.prompt
        new = NEW_COST * own.tokens
        span = np.maximum(own.last - own.first, 1e-9)
        for place, edge in enumerate(edges):
            want = np.where(own.arrived <= edge, prompt + new, 0.0)
            have = np.where(own.first <= edge, prompt, 0.0) + new * np.clip((edge - own.first) / span, 0.0, 1.0)
            asked[:, place] += np.bincount(own.traffic.tenant, want, count)
            served[:, place] += np.bincount(own.traffic.tenant, have, count)
    return asked, served
