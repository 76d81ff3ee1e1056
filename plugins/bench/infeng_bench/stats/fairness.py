"""How fairly several tenants were served: what each had, against what max-min fairness would have given it.

Service is counted as in the Virtual Token Counter (arXiv 2401.00588): a token of a prompt costs 1, a new token 2. Time
is cut into windows. In each, a tenant's demand is the cost of all its requests that have come by the window's end, less
what it was served before; the fair share of what was served in the window is what ``max_min`` gives of it. A tenant's
figure is what it was served over its fair shares, of the windows in which more was wanted than served, and ``jain``
says how even these figures are. A tenant that asks for little and has it at once counts 1, as does a greedy one that
gets what the others leave; a tenant that waits for a greedy one counts less.
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
CHUNK = 1 << 17  # requests looked at in one go

Costs = NDArray[np.float64]


def jain(values: Sequence[float] | Costs) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 where all are equal, 1/n where one has everything; 1 of nothing."""
    found = np.asarray(values, np.float64)
    squares = float((found**2).sum())
    return float(found.sum()) ** 2 / (len(found) * squares) if squares > 0 else 1.0


def max_min(demands: Costs, supply: float) -> Costs:
    """Return what each of ``demands`` gets of ``supply``: the smallest is met first, larger ones share the rest."""
    given = np.zeros(len(demands))
    left = supply
    order = np.argsort(demands)
    for place, who in enumerate(order):
        given[who] = min(float(demands[who]), left / (len(order) - place))
        left -= given[who]
    return given


def shares(outcomes: Outcomes) -> Costs:
    """Return what each tenant that asked for anything was served over its fair share, (tenants,)."""
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
    """Return the cost that each tenant has asked for, and been served, by each edge: two of (tenants, edges).

    A prompt counts when its first token is there, new tokens evenly from the first to the last. Requests that were
    never answered ask for nothing.
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
