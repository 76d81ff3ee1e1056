"""Figures per token from two models' logits, in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CELLS = 1 << 21
"""Logits converted to double precision at a time: 16 MB for each array."""


class Measures(NamedTuple):
    """Figures of the predicted tokens, (tokens,) each."""

    nll: NDArray[np.float64]
    """-log p(token) of the reference, in nats."""
    other: NDArray[np.float64]
    """-log p(token) of the candidate, in nats."""
    kl: NDArray[np.float64]
    """KL(p || q) = sum of p (log p - log q) over the vocabulary, p of the reference, q of the candidate; nats."""
    same: NDArray[np.bool_]
    """Whether both have the same most likely token."""


def measure(p: NDArray[np.float32], q: NDArray[np.float32], targets: NDArray[np.int32]) -> Measures:
    """Compare logits (rows, vocab) of the reference and the candidate; targets: the next tokens, (rows,).

    Equal logits give a KL of exactly 0. Logits that are not finite give figures that are not finite.
    """
    parts = [
        _measure(p[rows].astype(np.float64), q[rows].astype(np.float64), targets[rows]) for rows in _portions(p.shape)
    ]
    return Measures(*(np.concatenate([part[index] for part in parts]) for index in range(4)))


def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute x - log(sum of exp(x)) of each row of (rows, vocab) in place and return ``x``."""
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _measure(p: NDArray[np.float64], q: NDArray[np.float64], targets: NDArray[np.int32]) -> Measures:
    same = p.argmax(axis=1) == q.argmax(axis=1)
    p, q = log_softmax(p), log_softmax(q)
    rows = np.arange(len(targets))
    nll, other = -p[rows, targets], -q[rows, targets]
    np.subtract(p, q, out=q)
    np.exp(p, out=p)
    q[p == 0.0] = 0.0  # 0 log 0 = 0, even if the candidate's log is infinite
    kl = np.einsum("ij,ij->i", p, q)
    return Measures(nll, other, np.where(kl < 0.0, 0.0, kl), same)  # rounding may give a value below 0; NaN stays


def _portions(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, CELLS // shape[1])
    return (slice(begin, begin + step) for begin in range(0, shape[0], step))
