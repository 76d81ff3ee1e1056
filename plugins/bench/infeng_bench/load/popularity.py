"""The adapter of each request, with popularity by Zipf's law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STREAM = 3  # of the random streams of a seed; arrivals and prompts use others


def weights(count: int, alpha: float) -> list[float]:
    """Return the probabilities of ``count`` choices: the k-th, from 0, has weight 1 / (k + 1) ** alpha."""
    raw = [(k + 1) ** -alpha for k in range(count)]
    return [weight / sum(raw) for weight in raw]


def choices(requests: int, adapters: int, alpha: float, include_base: bool, seed: int) -> NDArray[np.int64]:
    """Return the index of each request's adapter, (requests,); the index ``adapters`` means the base model.

    Adapter 0 is the most popular. alpha: 0 or less means in turn. include_base: the base is one more choice, the last.
    """
    count = adapters + bool(include_base or not adapters)
    if alpha <= 0:
        return np.arange(requests) % count
    return np.random.default_rng([seed, STREAM]).choice(count, requests, p=weights(count, alpha))


def draw(requests: int, names: Sequence[str], alpha: float, include_base: bool, seed: int) -> list[str | None]:
    """Return the adapter's name of each request, None for the base model; arguments as in ``choices``."""
    every = [*names, None]
    return [every[k] for k in choices(requests, len(names), alpha, include_base, seed)]
