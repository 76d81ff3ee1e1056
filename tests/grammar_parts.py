"""Helpers for tests of structured output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import infeng_demo
import numpy as np
from infeng_grammar.processor import Grammar

Make = Callable[..., Grammar]
"""``make(argument)``: the processor of a request."""

MODEL = Path(infeng_demo.__file__).with_name("model")


def allowed(processor: Grammar, guesses: Sequence[int] = ()) -> set[int]:
    """Return the tokens that may come next."""
    row = processor.row(guesses)
    assert row.allowed is not None
    return set(np.flatnonzero(np.unpackbits(row.allowed.view(np.uint8), bitorder="little")).tolist())


def may_come(processor: Grammar, token: int) -> bool:
    """Return whether a token may come next."""
    row = processor.row(())
    assert row.allowed is not None
    return bool(int(row.allowed[token // 32]) >> token % 32 & 1)


def walk(processor: Grammar, ids: Sequence[int], end: int) -> int:
    """Return how many of ``ids`` the masks allow, one more if the text may end behind them."""
    for count, token in enumerate(ids):
        if not may_come(processor, token):
            return count
        processor.extend([token])
    return len(ids) + may_come(processor, end)
