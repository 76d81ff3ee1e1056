"""Log-probabilities of tokens in double precision, for callers who ask for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from infeng_core.requests.request import Logprob


def logprob(row: NDArray[np.float32], token: int, most: int) -> Logprob:
    """Return the log-probability of ``token`` and the ``most`` likely tokens by a row of logits, (vocab,).

    softmax at temperature 1, before any filter: logprob[i] = x[i] - log(sum of exp(x)).
    """
    x = row.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    likely: NDArray[np.intp] = np.empty(0, np.intp)
    if most:
        least = np.partition(x, -most)[-most] if most < len(x) else x.min()
        likely = np.flatnonzero(x >= least)  # ids ascend, and stay so among equals
        likely = likely[np.argsort(-x[likely], kind="stable")[:most]]
    before = np.count_nonzero(x > x[token]) + np.count_nonzero(x[:token] == x[token])  # ids ascend among equals
    return Logprob(
        token, float(x[token]), tuple(zip(likely.tolist(), x[likely].tolist(), strict=True)), int(before) + 1
    )
