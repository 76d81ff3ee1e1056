"""Which adapter each request asks for: popularity falls as in Zipf's law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

STREAM = 3  # of a seed's random streams; arrivals and prompts have others


def weights(count: int, alpha: float) -> list[float]:
    """Return the probabilities of ``count`` choices: the k-th, from 0, weighs 1 / (k + 1) ** alpha."""
    raw = [(k + 1) ** -alpha for k in range(count)]
    return [weight / sum(raw) for weight in raw]


def draw(requests: int, names: Sequence[str], alpha: float, include_base: bool, seed: int) -> list[str | None]:
    """Return the adapter of each request, None for the base model.

    names: the most popular first. alpha: 0 or less takes them in turn. include_base: the base is one more choice, the
    last. The same seed gives the same adapters.
    """
    choices: list[str | None] = [*names, *([None] if include_base or not names else [])]
    if alpha <= 0:
        return [choices[index % len(choices)] for index in range(requests)]
    rng = np.random.default_rng([seed, STREAM])
    return [choices[k] for k in rng.choice(len(choices), requests, p=weights(len(choices), alpha))]
