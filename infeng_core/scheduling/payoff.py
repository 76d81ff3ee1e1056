"""How many guesses of a sequence pay: more rows make a step longer, and right guesses save later steps.

With B sequences that decode, k guesses with chances p_1, ..., p_k (each if all before it are right) give
B + p_1 + p_1 p_2 + ... tokens in the time of a step of B + k rows. The k with the most tokens a second is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from infeng_core.scheduling.drafts import MOST_TOKENS

if TYPE_CHECKING:
    from infeng_core.scheduling.scheduler import Scheduler

ASSUMED = 0.08
"""What a further row adds to the time of a step, as a share, until steps with that many rows were observed."""

GAIN = 1.02
"""How many times the tokens a second must be with a guess; less may be an error of the predicted time."""

KEPT = 64
"""Calls between two looks at the cost model."""


class Payoff:
    """Called with the chances of guesses, returns how many of them to run."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        """scheduler: returns the present one, whose cost model and number of running sequences count."""
        self._scheduler = scheduler
        self._prices: dict[int, list[float]] = {}  # by running sequences: seconds with k guesses over those without
        self._calls = 0

    def __call__(self, chances: Sequence[float]) -> int:
        """Return how many guesses to run. chances: of each guess, that it is right if all before it are."""
        if not chances:
            return 0
        rows = max(1, self._scheduler().running)
        prices = self._prices_of(rows)
        expected, chance, best, count = float(rows), 1.0, GAIN * rows, 0
        for guesses, right in enumerate(chances[:MOST_TOKENS], 1):
            chance *= right
            expected += chance
            rate = expected / prices[guesses]
            if rate > best:
                best, count = rate, guesses
        return count

    def _prices_of(self, rows: int) -> list[float]:
        if self._calls % KEPT == 0:
            self._prices.clear()
        self._calls += 1
        if rows not in self._prices:
            self._prices[rows] = self._looked_up(rows)
        return self._prices[rows]

    def _looked_up(self, rows: int) -> list[float]:
        """Return the seconds of a step with 0, 1, ... ``MOST_TOKENS`` guesses over those of one without."""
        scheduler = self._scheduler()
        costs, latest = scheduler.costs, scheduler.shape
        attended = latest.attended // max(1, latest.rows)
        shape = latest._replace(rows=rows, sampled=rows, attended=rows * attended)
        plain = costs.seconds(shape)
        prices = [1.0]
        for guesses in range(1, MOST_TOKENS + 1):
            longer = shape._replace(rows=rows + guesses, sampled=rows + guesses, attended=(rows + guesses) * attended)
            known = plain > 0.0 and costs.knows(rows) and costs.knows(rows + guesses)
            price = costs.seconds(longer) / plain if known else prices[-1] + ASSUMED
            prices.append(max(price, prices[-1]))
        return prices
