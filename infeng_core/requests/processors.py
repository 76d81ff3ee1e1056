"""The interface of logit processors: a plugin's masks and biases for a request's next token, before it is drawn.

docs/numerics.md, "Sampling", defines their effect; it happens natively, on a copy of the row.
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
"""Tokens per word of a mask."""


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """The mask and changes of one processor for one row of logits. Arrays are copied at once and may be reused."""

    allowed: NDArray[np.uint32] | None = None
    """(ceil(vocab / 32),): token i may be drawn if bit i % 32 of word i // 32 is set; None allows every token."""
    ids: NDArray[np.int32] | None = None
    """(n,) tokens whose logits change, in this order; at most as many as there are tokens."""
    biases: NDArray[np.float32] | None = None
    """(n,) the addend of each; None adds nothing."""
    penalties: NDArray[np.float32] | None = None
    """(n,) above 0, applied first: a logit above 0 is divided by its penalty, another multiplied with it; None: by
    1."""


def wrong(wanted: Any, vocab: int) -> str:
    """Return what is wrong with a processor's result, such as "has ids of int64, not int32", or ""."""
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
    """Return a copy with contiguous arrays of its own."""
    given: dict[str, Any] = {item.name: getattr(wanted, item.name) for item in fields(wanted)}
    return Adjustment(**{name: None if array is None else np.array(array) for name, array in given.items()})


class LogitProcessor(Protocol):
    """Follows one request and adjusts its rows.

    Its answers may depend only on its argument, the prompt and the tokens: a request may be computed again, and
    tokens are guessed (speculation), neither of which may change the tokens drawn. A processor that raises, or
    returns an invalid result, ends its own request.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the new tokens of the request."""

    def row(self, guesses: Sequence[int]) -> Adjustment | None:
        """Return the adjustment of the token after the request's own and then ``guesses``; None changes nothing.

        The guesses need not come true, and ``extend`` was not called with them; all processors of the request allow
        each of them at its place. The processor's state must stay unchanged.
        """


class Forcing(LogitProcessor, Protocol):
    """A processor that sometimes knows the next tokens, because it allows no others."""

    def forced(self) -> Sequence[int]:
        """Return the tokens that must follow the request's own, the nearest first; none if there is a choice.

        The first 16 are used. It is called between two steps, but not for a request whose rows take 2 ms or more on
        average. The tokens are used as guesses: a step computes and draws them as it would without, but several at a
        time.
        """


class LogitProcessors(Protocol):
    """Makes one kind of processor for the requests of one engine; several threads may call it at a time."""

    def make(self, argument: Any, prompt: Sequence[int]) -> LogitProcessor:
        """Return the processor of a request that is about to be queued, without tokens yet.

        argument: the one beside the name in ``SamplingParams.processors``. It is called again if the request is
        computed again from its start. Raises RequestError for an invalid argument.
        """


class Vocabulary(Record):
    """Facts about an engine's tokens for processors."""

    tokenizer: Tokenizer
    """The engine's: text to ids and back."""
    size: int
    """Columns of the logits; there may be more of them than the tokenizer has ids."""
    ends: tuple[int, ...]
    """The model's end-of-text tokens."""
    directory: Path
    """The folder of the model's tokenizer files."""

    def mask(self, allowed: Iterable[int]) -> NDArray[np.uint32]:
        """Return the mask, (ceil(size / 32),), of the ids ``allowed``; raises ValueError for an id outside the
        vocabulary."""
        flags = np.zeros(-(-self.size // BITS) * BITS, bool)
        ids = np.fromiter(allowed, np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.size:
            raise ValueError(f"ids {ids.min()} to {ids.max()} are not all in the vocabulary of {self.size}")
        flags[ids] = True
        return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32, copy=False)


LogitProcessorFactory = Callable[[Vocabulary], LogitProcessors]
"""Called once by an engine, before the first request that names the processor."""
