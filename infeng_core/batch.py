"""What one step is: its bounds, the sequences in it, the rows of each, and the arrays that a backend reads.

Schedulers make batches and backends run them; both read this file, and neither knows the other.
"""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from infeng_core.errors import InfengError
from infeng_core.requests.request import Request

BLOCK_TOKENS = 16
"""Positions in one block: a line of the native cache layout holds 16 tokens."""

NOT_FINITE = -1
"""Stands for the token of a row whose logits hold NaN or infinity, or whose logit processors let none be drawn."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for every batch; a backend sizes its memory by them once."""

    max_rows: int
    max_samples: int
    max_segments: int
    context: int
    """Most positions of one sequence."""
    kv_blocks: int
    """Blocks of 16 positions in the cache, of all sequences and groups of layers together."""
    windows: tuple[int, ...] = (0,)
    """How far attention sees in each group of layers that has blocks of its own, those that see all (0) first."""

    @property
    def tokens(self) -> int:
        """Positions that fit, of all sequences together, whatever windows save."""
        return self.kv_blocks // len(self.windows) * BLOCK_TOKENS


class Guesses(Protocol):
    """What may come next in one sequence, and how many guesses it may make."""

    draft: list[int]
    """Guesses of the next tokens, the nearest first."""

    def follow(self, new: abc.Sequence[int], drafted: int) -> None:
        """Take the ``new`` tokens that a step gave, which had ``drafted`` guesses in it, and guess again."""


class Processors(Protocol):
    """The logit processors of one request (requests/chain.py)."""

    error: InfengError | None
    """Why its next token cannot be drawn, once it could not."""

    @property
    def cost(self) -> float:
        """Seconds of processor time that an answer of theirs has taken so far, on average."""

    @property
    def names(self) -> str:
        """What they are called, for messages."""

    def rows(self, sequence: RunningRequest, guesses: abc.Sequence[int]) -> abc.Sequence[Any]:
        """Return what is wanted of the token after those of ``sequence``, then of those after each guess that counts.

        Asked again for the same tokens, because it came too late for a step, it returns the same without any work.
        Raises InfengError where that cannot be told of the first of them.
        """

    def lose(self) -> None:
        """Answer from now on that a processor did not come back from a call."""

    def forced(self, sequence: RunningRequest) -> list[int]:
        """Return the tokens that have to follow those of ``sequence``, as far as they are known."""

    def restart(self) -> None:
        """Forget everything: the request is computed again."""


class Pooling(Protocol):
    """What takes the hidden states of one sequence's prompt (requests/pooling.py)."""

    begin: int
    """The first position whose state it wants; those before need not be computed for it."""

    def take(self, position: int, hidden: NDArray[np.float32]) -> None:
        """Take the states, (rows, hidden), of positions from ``position`` on; the same may come again."""


class AdapterHandle(Protocol):
    """An adapter in the memory of an executable, which goes back when the last reference is dropped."""

    @property
    def nbytes(self) -> int:
        """Bytes of that memory."""


class AdapterRegistry(Protocol):
    """What brings the adapters in that requests wait for."""

    @property
    def changes(self) -> int:
        """Counts whatever may let a request start that could not before."""

    def prefetch(self, references: abc.Sequence[Any]) -> int:
        """Begin to load what requests that wait need; return how many of the first do not lack room."""


class AdapterReference(Protocol):
    """The adapters of one request, which it has from ``acquire`` on until ``release`` or ``close``."""

    @property
    def registry(self) -> AdapterRegistry:
        """Who brings them in."""

    weights: tuple[float, ...]
    """Of each adapter, in the request's order."""
    rows: tuple[tuple[AdapterHandle, float], ...]
    """(handle, weight) of each, in the request's order; empty until acquired."""
    error: InfengError | None
    """Why the request cannot have them."""

    @property
    def uses(self) -> Hashable:
        """Equal for requests that use the same adapters with the same weights."""

    def known(self) -> tuple[str, ...] | None:
        """Return the content ids that ``acquire`` would give now; None where not all are known."""

    def is_ready(self) -> bool:
        """Return whether all are in memory; asked without a lock, so that ``acquire`` may know better."""

    def acquire(self) -> bool:
        """Take the adapters if all of them are in memory; return whether the request has them."""

    def release(self) -> None:
        """Give the adapters back for as long as the request does not run."""

    def close(self) -> None:
        """Give the adapters back for good."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request on its way: its tokens so far and what of them is in the cache."""

    id: int
    request: Request
    tokens: NDArray[np.int32]
    """(capacity,) the prompt, then the new tokens; capacity bounds both together."""
    prompt_length: int
    length: int
    """Tokens known: the prompt and the new ones."""
    computed: int = 0
    """Positions whose keys and values are in the cache; length - 1 while decoding."""
    blocks: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Cache blocks of positions [16 i, 16 i + 16) in the first group of layers, as many as it needs so far; empty while
    waiting. Where the group has a window, -1 stands for a block that it has no more, or not yet."""
    tables: NDArray[np.int32] = field(default_factory=lambda: np.empty((1, 0), np.int32))
    """(groups, blocks) the same of every group, where any has a window."""
    near: tuple[int, int] = (0, 0)
    """Which of those blocks, [begin, end), the groups with a window have."""
    last: int = 0
    """The newest token."""
    seed: int = 0
    """Of the random numbers that choose its tokens."""
    arrived: float = 0.0
    """When it was submitted, in seconds of the clock that the scheduler is told; so are the other times."""
    started: float = 0.0
    """When it first got blocks; 0 before."""
    deadline: float = math.inf
    """When it ends, whatever it has."""
    cached: int = 0
    """Tokens that were found in the cache when it first started."""
    preemptions: int = 0
    """How often its blocks were taken back."""
    guesses: Guesses | None = None
    """What may come next; None without speculation."""
    processors: Processors | None = None
    """Its logit processors; None where it has none."""
    forced: list[int] = field(default_factory=list)
    """Tokens that its processors say have to come next; they are guessed instead of what ``guesses`` has."""
    pooling: Pooling | None = None
    """What takes its hidden states; None where nobody wants them."""
    adapters: AdapterReference | None = None
    """Its adapters; None for the base alone."""
    report_from: int | None = None
    """The first position whose logits its caller wants though the next token is known; None: of no such position."""

    @staticmethod
    def start(id_: int, request: Request, prompt: list[int], capacity: int, seed: int) -> RunningRequest:
        """Return a sequence of which nothing is computed yet."""
        tokens = np.empty(capacity, np.int32)
        tokens[: len(prompt)] = prompt
        return RunningRequest(id_, request, tokens, len(prompt), len(prompt), last=prompt[-1], seed=seed)

    def restart(self, new: list[int]) -> None:
        """Compute it again from its first position; ``new`` are the tokens that it has beside its prompt."""
        self.length = self.prompt_length + len(new)
        self.tokens[self.prompt_length : self.length] = new
        self.last = int(self.tokens[self.length - 1])
        self.computed = 0
        self.forget_blocks()
        self.forced = []
        if self.processors is not None:
            self.processors.restart()

    def forget_blocks(self) -> None:
        """Have no blocks; whose they are now is not decided here."""
        self.blocks, self.tables, self.near = self.blocks[:0], self.tables[:, :0], (0, 0)

    @property
    def draft(self) -> list[int]:
        """Guesses of the tokens after the last, nearest first; as many as fit into its capacity, often none."""
        found = self.forced or (self.guesses.draft if self.guesses is not None else [])
        return found[: len(self.tokens) - self.length - 1]

    def extend(self, new: list[int], drafted: int) -> None:
        """Add what a step gave: ``new`` tokens, from a segment that had ``drafted`` guessed rows."""
        begin = self.length
        self.length = end = begin + len(new)
        self.last = last = new[-1]
        if end == begin + 1:
            self.tokens[begin] = last  # a fifth of the time of a slice
        else:
            self.tokens[begin:end] = new
        self.computed = end - 1  # what was computed for wrong guesses will be overwritten
        if self.guesses is not None:
            self.guesses.follow(new, 0 if self.forced else drafted)  # which learns from its own guesses alone
        if self.processors is not None:
            self.forced = self.processors.forced(self)


class Segment(NamedTuple):
    """Rows [row_begin, row_end) are positions pos0, pos0 + 1, ... of one sequence, of which the last ``sampled`` are.

    Logits are wanted of no row within a prompt, of one row at its end and while decoding, and of ``1 + d`` rows where
    ``d`` guessed tokens follow the last known one. A sequence that has ``report_from`` wants those of every row from
    there on: the first ``known`` of the sampled rows are followed by tokens that are known, so nothing is drawn there.
    """

    sequence: RunningRequest
    row_begin: int
    row_end: int
    pos0: int
    sampled: int
    known: int = 0


class AdapterRows(NamedTuple):
    """Rows [row_begin, row_end) of a batch use an adapter, its products times ``weight``."""

    row_begin: int
    row_end: int
    handle: AdapterHandle
    weight: float


class Batch(NamedTuple):
    """One step's work, as the arrays that a backend reads. They are overwritten by the scheduler's next batch."""

    segments: list[Segment]
    tokens: NDArray[np.int32]  # (rows,)
    positions: NDArray[np.int32]  # (rows,)
    kv_segments: NDArray[np.int32]  # (segments, 4): row_begin, row_end, pos0, first index into block_tables
    block_tables: NDArray[np.int32]  # flat: the blocks of each segment's sequence, one after the other; those of each
    # further group of layers begin ceil(context / 16) entries behind those of the group before it
    sample_rows: NDArray[np.int32]  # (samples,) rows whose logits are wanted, ascending
    adapters: abc.Sequence[AdapterRows] = ()
    """Sorted by row. Adapters that combine have the same rows and follow each other in the order of the request."""
    hidden: bool = False
    """Whether somebody wants the hidden states of its rows (``HiddenStates``)."""


def uses_of(sequence: RunningRequest) -> tuple[tuple[AdapterHandle, float], ...]:
    """Return (handle, weight) of a running sequence's adapters."""
    return () if sequence.adapters is None else sequence.adapters.rows


def adapter_rows(segments: abc.Sequence[Segment]) -> list[AdapterRows]:
    """Return which rows use which adapters; neighbours that use the same ones share their entries."""
    ranges: list[AdapterRows] = []
    last: tuple[tuple[AdapterHandle, float], ...] = ()
    begin = end = 0
    for segment in segments:
        rows = uses_of(segment.sequence)
        if rows != last:
            ranges += [AdapterRows(begin, end, handle, weight) for handle, weight in last]
            last, begin = rows, segment.row_begin
        end = segment.row_end
    ranges += [AdapterRows(begin, end, handle, weight) for handle, weight in last]
    return ranges


def part(batch: Batch, segments: abc.Sequence[Segment]) -> Batch:
    """Return the rows of some of a batch's ``segments``, in their order, as a batch."""
    kept: list[Segment] = []
    row = 0
    for segment in segments:
        rows = segment.row_end - segment.row_begin
        kept.append(segment._replace(row_begin=row, row_end=row + rows))
        row += rows
    taken = np.concatenate([np.arange(segment.row_begin, segment.row_end) for segment in segments])
    indices = [batch.segments.index(segment) for segment in segments]
    kv_segments = batch.kv_segments[indices]
    kv_segments[:, :2] = [segment[1:3] for segment in kept]
    sampled = [row for segment in kept for row in range(segment.row_end - segment.sampled, segment.row_end)]
    return Batch(
        kept,
        batch.tokens[taken],
        batch.positions[taken],
        kv_segments,
        batch.block_tables,
        np.array(sampled, np.int32),
        adapter_rows(kept),
    )
