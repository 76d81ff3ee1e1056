"""Logit processors: what a plugin says for one request about the tokens that may come next, before any is drawn.

docs/numerics.md, "Sampling", says how masks and biases act; it happens natively, on a copy of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.record import Record
from infeng_core.requests.tokenizer import Tokenizer

BITS = 32
"""Tokens in a word of a mask."""


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """The wishes of one processor for one row of logits. Arrays are copied at once: the same ones may be used again."""

    allowed: NDArray[np.uint32] | None = None
    """(ceil(vocab / 32),): token i may be drawn if bit i % 32 of word i // 32 is set; None allows every token."""
    ids: NDArray[np.int32] | None = None
    """(n,) tokens whose logits change, in this order; at most as many as there are tokens."""
    biases: NDArray[np.float32] | None = None
    """(n,) what is added to each; None adds nothing."""
    penalties: NDArray[np.float32] | None = None
    """(n,) above 0: before that a logit above 0 is divided by its penalty, another multiplied with it; None: by 1."""


def wrong(wanted: Any, vocab: int) -> str:
    """Return what is wrong with what a processor gave, such as "has ids of int64, not int32", or ""."""
    if wanted is None:
        return ""
    if not isinstance(wanted, Adjustment):
        return f"is a {type(wanted).__name__}, not an Adjustment"
    words = (-(-vocab // BITS),)
    count = getattr(wanted.ids, "shape", None) if wanted.ids is not None else (0,)
    owed = (("allowed", np.uint32, words), ("ids", np.int32, count), ("biases", np.float32, count))
    for name, kind, shape in (*owed, ("penalties", np.float32, count)):
        array = getattr(wanted, name)
        if array is None:
            continue
        if not isinstance(array, np.ndarray):
            return f"has {name} that are a {type(array).__name__}, not an array"
        if array.dtype != kind:
            return f"has {name} of {array.dtype}, not {np.dtype(kind)}"
        if array.shape != shape or array.ndim != 1:
            return f"has {name} of shape {array.shape}, not {'(n,)' if name == 'ids' else shape}"
        if name == "ids" and len(array) > vocab:
            return f"has {len(array)} ids, and the vocabulary {vocab}"
        if kind is np.float32 and not np.isfinite(array).all():
            return f"has {name} that are not finite"
        if name == "penalties" and array.size and array.min() <= 0:
            return "has penalties that are not above 0"
    if wanted.ids is not None and wanted.ids.size and not 0 <= wanted.ids.min() <= wanted.ids.max() < vocab:
        return f"has ids that are not in the vocabulary of {vocab}"
    return ""


def copied(wanted: Adjustment) -> Adjustment:
    """Return the same in arrays of its own, contiguous."""
    given: dict[str, Any] = {item.name: getattr(wanted, item.name) for item in fields(wanted)}
    return Adjustment(**{name: None if array is None else np.array(array) for name, array in given.items()})


class LogitProcessor(Protocol):
    """Follows one request and says what is wanted of its rows.

    Its answers may depend on its argument, the prompt and the tokens alone: a request may be computed again, and
    tokens are guessed (speculation), neither of which may change what is drawn. One that raises, or returns what it may
    not, ends its own request.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that the request has gained."""

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return what is wanted of the token after the request's own and then ``guesses``; None is nothing.

        The guesses need not come true and ``extend`` has not told them; each is one that all processors of the request
        allowed at its place. A processor goes back to where it was.
        """


class Forcing(LogitProcessor, Protocol):
    """A processor that knows at times which tokens come next, because it allows no other."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that have to follow the request's own, the nearest first; none where there is a choice.

        Of more than 16 the first are taken. It is called between two steps, and not at all of a request whose rows take
        long, on average: 2 ms.
        They are guesses: a step computes and draws them as it would have without, but several at a time.
        """


class LogitProcessors(Protocol):
    """Makes one kind of processor for the requests of one engine; several threads may ask at a time."""

    def make(self, argument: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of a request that is about to be queued, which has no tokens yet.

        argument: what ``SamplingParams.processors`` gives beside the name. Called again where the request is computed
        again from its start. Raises RequestError for an argument that cannot be.
        """


class Vocabulary(Record):
    """The facts about an engine's tokens that a processor gets."""

    tokenizer: Tokenizer
    size: int
    """Columns of the logits; there may be more of them than the tokenizer has ids."""
    ends: tuple[int, ...]
    """The tokens that end a text, the model's own."""
    directory: Path
    """Where the model's tokenizer files are."""

    def mask(self, allowed: Iterable[int]) -> NDArray[np.uint32]:
        """Return the mask, (ceil(size / 32),), of the ids ``allowed``; raises ValueError for one that is no token."""
        flags = np.zeros(-(-self.size // BITS) * BITS, bool)
        ids = np.fromiter(allowed, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.size:
            raise ValueError(f"ids {ids.min()} to {ids.max()} are not all in the vocabulary of {self.size}")
        flags[ids] = True
        return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32, copy=False)


LogitProcessorFactory = Callable[[Vocabulary], LogitProcessors]
"""Called once by an engine, before the first request that names the processor."""
