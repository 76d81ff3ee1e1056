"""A drafter with a head of its own, as multi-token prediction (MTP): ``speculation: {use: nextnext}``.

A head of a real model is trained and read from a file. This one is linear and is fitted, by ridge regression, to what
the model does while it runs: from the hidden state h of a position and the token drawn there, to the token after it.
The data flow is the same: ``see`` brings h before ``extend`` brings the token, and ``draft`` guesses the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from infeng_core.api import hookimpl

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RIDGE = 0.1
MOST = 512  # pairs that are remembered


class Head:
    """Scores for the token after next: W x, x the hidden state and a vector of the next token."""

    def __init__(self, learn: int) -> None:
        """Start without weights. learn: pairs between two fits."""
        self._learn = learn
        self._inputs: deque[NDArray[np.float32]] = deque(maxlen=MOST)  # of the latest pairs, (2 hidden,) each
        self._targets: deque[int] = deque(maxlen=MOST)
        self._new = 0
        self._known: NDArray[np.int64] | None = None  # (targets,) the tokens that can be guessed, ascending
        self._weights: NDArray[np.float32] | None = None  # (2 hidden, targets)

    def input(self, state: NDArray[np.float32], token: int) -> NDArray[np.float32]:
        """Return x, (2 hidden,): the state, and a fixed random vector of the token."""
        import numpy as np

        vector = np.random.default_rng(token).standard_normal(len(state), np.float32)
        return np.concatenate([state, vector])

    def learn(self, x: NDArray[np.float32], target: int) -> None:
        """Take the token that came after ``x``."""
        self._inputs.append(x)
        self._targets.append(target)
        self._new += 1
        if self._new % self._learn == 0:
            self._fit()

    def _fit(self) -> None:
        import numpy as np

        x = np.stack(self._inputs)
        self._known, places = np.unique(self._targets, return_inverse=True)
        y = np.eye(len(self._known), dtype=np.float32)[places]
        gram = x @ x.T + RIDGE * np.eye(len(x), dtype=np.float32)
        self._weights = x.T @ np.linalg.solve(gram, y)

    def best(self, x: NDArray[np.float32]) -> int | None:
        """Return the likeliest token after ``x``; None before the first fit."""
        if self._weights is None or self._known is None:
            return None
        return int(self._known[(x @ self._weights).argmax()])


class NextNext:
    """Guesses one token of a request by a head that is fitted to this request alone.

    A head that learns from several requests must be one tenant's (``DraftedRequest``): its guesses tell what it saw.
    """

    most_tokens = 1

    def __init__(self, learn: int, prompt: Sequence[int]) -> None:
        """Start a request."""
        self._head = Head(learn)
        self._states: list[NDArray[np.float32]] = []  # of positions whose tokens come with the next ``extend``
        self._input: NDArray[np.float32] | None = None

    def see(self, position: int, states: NDArray[np.float32]) -> None:
        """Take the hidden states, (rows, hidden), of positions from ``position`` on."""
        self._states = list(states)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens: the last states are those from which they were drawn."""
        for state, token in zip(self._states[-len(tokens) :], tokens, strict=True):
            if self._input is not None:
                self._head.learn(self._input, token)
            self._input = self._head.input(state, token)

    def draft(self, count: int) -> list[int]:
        """Return one guess, once the head is fitted."""
        guess = None if self._input is None else self._head.best(self._input)
        return [] if guess is None else [guess]


@hookimpl
def infeng_drafters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drafter."""
    return {"nextnext": partial(NextNext, settings["learn"])}
