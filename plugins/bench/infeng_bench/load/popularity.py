"""Which adapter each request asks for: popularity falls as in Zipf's law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STREAM = 3  # of a seed's random streams; arrivals and prompts have others


def weights(count: int, alpha: float) -> list[float]:
    """Return the probabilities of ``count`` choices: the k-th, from 0, weighs 1 / (k + 1) ** alpha."""
    raw = [(k + 1) ** -alpha for k in range(count)]
    return [weight / sum(raw) for weight in raw]


def choices(requests: int, adapters: int, alpha: float, include_base: bool, seed: int) -> NDArray[np.int64]:
    """Return the number of each request's adapter, (requests,); ``adapters`` stands for the base model.

    The first is the most popular. alpha: 0 or less takes them in turn. include_base: the base is one more choice, the
    last. The same seed gives the same adapters.
    """
    count = adapters + bool(include_base or not adapters)
    if alpha <= 0:
        return np.arange(requests) % count
    return np.random.default_rng([seed, STREAM]).choice(count, requests, p=weights(count, alpha))


def draw(requests: int, names: Sequence[str], alpha: float, include_base: bool, seed: int) -> list[str | None]:
    """Return the adapter of each request by its name, None for the base model; arguments as of ``choices``."""
    every = [*names, None]
    return [every[k] for k in choices(requests, len(names), alpha, include_base, seed)]
