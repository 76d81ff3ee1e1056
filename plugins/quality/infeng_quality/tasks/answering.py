"""A model's answers to questions, and its log-probabilities of the correct answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import Engine, Request, RequestError, SamplingParams
from infeng_quality.models import check_finite
from infeng_quality.tasks.kinds import Item, Task

BATCH = 64
TOO_LONG = "too long"
"""Reason of a question that leaves no room in the context; it counts as wrong."""


class Answered(NamedTuple):
    """A model's answers."""

    texts: list[str]
    reasons: list[str]
    """"passed", or why not."""
    nll: NDArray[np.float64]
    """nll of all tokens of the correct answer after the question, in nats, (items,); NaN if it does not fit."""
    tokens: NDArray[np.int64]
    """Tokens of the correct answers, (items,)."""

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Whether each answer is correct, (items,)."""
        return np.array([reason == "passed" for reason in self.reasons])


def answer(
    engine: Engine, task: Task, items: Sequence[Item], progress: Callable[[int], Any], adapter: str | None = None
) -> Answered:
    """Answer greedily, judge, and score the correct answers. adapter: name of a loaded one. Raises InfengError."""
    found: list[str] = []
    reasons: list[str] = []
    for begin in range(0, len(items), BATCH):
        part = items[begin : begin + BATCH]
        for item, text in zip(part, _texts(engine, task, part, adapter), strict=True):
            found.append(text or "")
            reasons.append(TOO_LONG if text is None else item.judge(text))
            progress(1)
    nll, tokens = np.full(len(items), np.nan), np.zeros(len(items), np.int64)
    for index, item in enumerate(items):
        if (read := gold(engine, item, adapter)) is not None:
            nll[index], tokens[index] = read
        progress(1)
    check_finite(f"{engine.model.source}", nll[tokens > 0])
    return Answered(found, reasons, nll, tokens)


def gold(engine: Engine, item: Item, adapter: str | None = None) -> tuple[float, int] | None:
    """Return the nll of the correct answer's tokens after the question, and their number; None if it does not fit."""
    try:
        read = engine.score(Request(item.prompt, adapter=adapter, parse_special=False), item.gold)
    except RequestError:
        return None
    return -sum(one.logprob for one in read), len(read)


def _texts(engine: Engine, task: Task, items: Sequence[Item], adapter: str | None) -> list[str | None]:
    """Return the answers; None for a question that fills the context."""
    params = SamplingParams(temperature=0.0, max_tokens=task.max_tokens, stop=task.stop)
    ids = engine.tokenizer.encode([item.prompt for item in items], parse_special=False)
    fits = [index for index, one in enumerate(ids) if 0 < len(one) < engine.limits.context]
    answers = engine.generate([Request(tuple(ids[index]), params, adapter=adapter) for index in fits]) if fits else []
    found: list[str | None] = [None] * len(items)
    for index, one in zip(fits, answers, strict=True):
        found[index] = one.text
    return found
