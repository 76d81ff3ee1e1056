"""One step as data: its bounds, its sequences, the rows of each, and the arrays that a backend reads.

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
from infeng_core.requests.request import Request, SamplingParams

BLOCK_TOKENS = 16
"""Positions in one block: a block of the native cache layout holds 16 tokens."""

NOT_FINITE = -1
"""The token of a row whose logits hold NaN or infinity, or whose logit processors allow no token."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of every batch; a backend sizes its memory by them once."""

    max_rows: int
    """Rows of a batch, each a token at a position."""
    max_samples: int
    """Rows whose logits are wanted."""
    max_segments: int
    """Sequences in a batch."""
    context: int
    """Most positions of one sequence."""
    kv_blocks: int
    """Blocks of 16 positions in the cache, of all sequences and groups of layers together."""
    windows: tuple[int, ...] = (0,)
    """The attention window of each group of layers with blocks of its own, groups with full attention (0) first."""

    @property
    def tokens(self) -> int:
        """Positions that fit, of all sequences together, without savings by windows."""
        return self.kv_blocks // len(self.windows) * BLOCK_TOKENS


class Guesses(Protocol):
    """Guesses of the next tokens of one sequence, and how many it may make."""

    draft: list[int]
    """Guesses of the next tokens, the nearest first."""

    @property
    def sees(self) -> bool:
        """Whether hidden states are wanted."""

    def see(self, position: int, states: NDArray[np.float32], drawn: int) -> None:
        """Take the states, (rows, hidden), of a step's rows from ``position`` on.

        drawn: how many of the last rows a token is drawn from.
        """

    def follow(self, new: abc.Sequence[int], drafted: int) -> None:
        """Take the ``new`` tokens of a step in which ``drafted`` guesses ran, and guess again."""

    def end(self, tokens: abc.Sequence[int]) -> None:
        """Take all ``tokens`` of the answer, which has ended; a second call does nothing."""


class Processors(Protocol):
    """The logit processors of one request (requests/chain.py)."""

    error: InfengError | None
    """The error that keeps its next token from being drawn, or None."""

    @property
    def cost(self) -> float:
        """Average seconds of processor time per answer so far."""

    @property
    def names(self) -> str:
        """Their names, for messages."""

    def rows(self, sequence: RunningRequest, guesses: abc.Sequence[int]) -> abc.Sequence[Any]:
        """Return the processors' output for the token after ``sequence``, then for the tokens after each valid guess.

        If the result came too late for a step, a second call with the same tokens returns it without further work.
        Raises InfengError if the first output cannot be computed.
        """

    def lose(self) -> None:
        """Report from now on that a processor did not return from a call."""

    def forced(self, sequence: RunningRequest) -> list[int]:
        """Return the known tokens that must follow those of ``sequence``."""

    def restart(self) -> None:
        """Forget all state: the request is computed again."""


class Pooling(Protocol):
    """Pools the hidden states of one sequence's prompt (requests/pooling.py)."""

    begin: int
    """The first position whose state it needs; earlier ones need not be computed for it."""

    def take(self, position: int, hidden: NDArray[np.float32]) -> None:
        """Take the states, (rows, hidden), of positions from ``position`` on; the same states may come again."""


class AdapterHandle(Protocol):
    """An adapter in the memory of an executable, freed when the last reference is dropped."""

    @property
    def nbytes(self) -> int:
        """Bytes of that memory."""


class AdapterRegistry(Protocol):
    """The loader of adapters for waiting requests."""

    @property
    def changes(self) -> int:
        """Counts changes after which a request may be able to start."""

    def prefetch(self, references: abc.Sequence[Any]) -> int:
        """Begin to load the adapters of waiting requests; return how many of the first do not lack room."""


class AdapterReference(Protocol):
    """The adapters of one request, held from ``acquire`` until ``release`` or ``close``."""

    @property
    def registry(self) -> AdapterRegistry:
        """The registry that loads them."""

    rows: tuple[tuple[AdapterHandle, float], ...]
    """(handle, weight) of each that acts on the request, in the request's order; empty until acquired."""
    begins: tuple[int, ...]
    """First position on which each of ``rows`` acts, before the prompt's end; () if all act on all."""
    error: InfengError | None
    """The error that keeps the request from having them, or None."""

    @property
    def uses(self) -> Hashable:
        """Equal for requests that use the same adapters with the same weights."""

    def known(self) -> tuple[tuple[str, float, int], ...] | None:
        """Return (content id, weight, first position) of each that would act if ``acquire`` were called now.

        None: some contents are unknown.
        """

    def is_ready(self) -> bool:
        """Return whether all are in memory. It takes no lock, so ``acquire`` may still answer otherwise."""

    def acquire(self) -> bool:
        """Take the adapters if all of them are in memory; return whether the request has them."""

    def release(self) -> None:
        """Give the adapters back while the request does not run."""

    def close(self) -> None:
        """Give the adapters back for good."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request in the engine: its tokens so far, and how many of them are in the cache."""

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
    """Cache blocks of positions [16 i, 16 i + 16) in the first group of layers, as many as it needs so far; empty
    while waiting. If the group has a window, -1 stands for a block that was freed or is not yet allocated."""
    tables: NDArray[np.int32] = field(default_factory=lambda: np.empty((1, 0), np.int32))
    """(groups, blocks) the same for every group, if any has a window."""
    near: tuple[int, int] = (0, 0)
    """The range [begin, end) of these blocks that groups with a window have."""
    last: int = 0
    """The newest token."""
    seed: int = 0
    """Seed of the random numbers that choose its tokens."""
    arrived: float = 0.0
    """Time of submission, in seconds of the scheduler's clock; so are the other times."""
    started: float = 0.0
    """Time of its first blocks; 0 before."""
    deadline: float = math.inf
    """Deadline at which it ends in any case."""
    cached: int = 0
    """Tokens that were found in the cache at its first start."""
    preemptions: int = 0
    """Number of preemptions."""
    guesses: Guesses | None = None
    """Guesses of its next tokens; None without speculation."""
    processors: Processors | None = None
    """Its logit processors, or None."""
    forced: list[int] = field(default_factory=list)
    """Tokens that its processors require next; they replace the drafts of ``guesses``."""
    pooling: Pooling | None = None
    """The consumer of its hidden states, or None."""
    adapters: AdapterReference | None = None
    """Its adapters; None for the base alone."""
    report_from: int | None = None
    """The first position whose logits the caller wants although the next token is known; None without one."""

    @staticmethod
    def start(id_: int, request: Request, prompt: list[int], capacity: int, seed: int) -> RunningRequest:
        """Return a sequence without computed positions."""
        tokens = np.empty(capacity, np.int32)
        tokens[: len(prompt)] = prompt
        return RunningRequest(id_, request, tokens, len(prompt), len(prompt), last=prompt[-1], seed=seed)

    def restart(self, new: list[int]) -> None:
        """Compute it again from its first position; ``new``: its tokens after the prompt."""
        self.length = self.prompt_length + len(new)
        self.tokens[self.prompt_length : self.length] = new
        self.last = int(self.tokens[self.length - 1])
        self.computed = 0
        self.forget_blocks()
        self.forced = []
        if self.processors is not None:
            self.processors.restart()

    def forget_blocks(self) -> None:
        """Drop the reference to its blocks without freeing them."""
        self.blocks, self.tables, self.near = self.blocks[:0], self.tables[:, :0], (0, 0)

    @property
    def draft(self) -> list[int]:
        """Guesses of the tokens after the last, nearest first; as many as fit into its capacity, often none."""
        found = self.forced or (self.guesses.draft if self.guesses is not None else [])
        return found[: len(self.tokens) - self.length - 1]

    def extend(self, new: list[int], drafted: int) -> None:
        """Add the ``new`` tokens of a step, from a segment that had ``drafted`` guessed rows."""
        begin = self.length
        self.length = end = begin + len(new)
        self.last = last = new[-1]
        if end == begin + 1:
            self.tokens[begin] = last  # takes a fifth of the time of a slice
        else:
            self.tokens[begin:end] = new
        self.computed = end - 1  # later steps overwrite positions of wrong guesses
        if self.guesses is not None:
            self.guesses.follow(new, 0 if self.forced else drafted)  # ``guesses`` learns only from its own drafts
        if self.processors is not None:
            self.forced = self.processors.forced(self)


class Segment(NamedTuple):
    """Rows [row_begin, row_end) are positions pos0, pos0 + 1, ... of one sequence; the last ``sampled`` rows are
    sampled.

    Inside a prompt no row is sampled, at its end and while decoding one row is, and with ``d`` guesses after the last
    known token ``1 + d`` rows are. With ``report_from``, every row from that position on is sampled: the first
    ``known`` of these rows precede known tokens, so nothing is drawn there.
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


class Draws(NamedTuple):
    """Sampled rows whose tokens the backend draws by docs/numerics.md, "Sampling"; each field has one entry per row."""

    samples: NDArray[np.int32]
    """(draws,) the places of the rows in ``Batch.sample_rows``, ascending."""
    positions: NDArray[np.int64]
    """(draws,) the position of each drawn token, the counter of its random numbers."""
    seeds: NDArray[np.uint64]
    """(draws,) the key of its random numbers."""
    params: abc.Sequence[SamplingParams]
    """(draws,) the parameters of its request, which the backend supports."""


class Batch(NamedTuple):
    """One step's work, as the arrays that a backend reads. They are overwritten by the scheduler's next batch."""

    segments: list[Segment]  # the sequence of each range of rows, ascending
    tokens: NDArray[np.int32]  # (rows,) the token of each row
    positions: NDArray[np.int32]  # (rows,) its position in its sequence
    kv_segments: NDArray[np.int32]  # (segments, 4): row_begin, row_end, pos0, first index into block_tables
    block_tables: NDArray[np.int32]  # flat: the blocks of each segment's sequence, one after the other; those of each
    # further group of layers begin ceil(context / 16) entries behind those of the group before it
    sample_rows: NDArray[np.int32]  # (samples,) rows whose logits are wanted, ascending
    adapters: abc.Sequence[AdapterRows] = ()
    """Sorted by row. Adapters that combine have the same rows and follow each other in the order of the request."""
    hidden: bool = False
    """Whether hidden states of its rows are needed (``HiddenStates``)."""
    draws: Draws | None = None
    """The rows whose tokens the backend draws (``DeviceSampling``); None: the host draws all of them."""


Uses = tuple[tuple[AdapterHandle, float], ...]
"""(handle, weight) of each adapter that acts on a row, in the order of their sum."""


def uses_of(sequence: RunningRequest) -> Uses:
    """Return the adapters that act on a running sequence's last positions."""
    return () if sequence.adapters is None else sequence.adapters.rows


def uses_before(sequence: RunningRequest, end: int) -> Uses:
    """Return the adapters that act on one of a running sequence's positions before ``end``."""
    adapters = sequence.adapters
    if adapters is None or not adapters.begins:
        return uses_of(sequence)
    return tuple(use for use, begin in zip(adapters.rows, adapters.begins, strict=True) if begin < end)


def is_split(segment: Segment) -> bool:
    """Return whether an adapter does not act on all of a segment's rows."""
    adapters = segment.sequence.adapters
    return adapters is not None and segment.pos0 < max(adapters.begins, default=0)


def runs_of(sequence: RunningRequest, begin: int, end: int) -> abc.Iterator[tuple[int, Uses]]:
    """Yield the first of each run of positions in [begin, end) on which the same adapters act, and those adapters."""
    begins = () if sequence.adapters is None else sequence.adapters.begins
    for first in sorted({begin, *(one for one in begins if begin < one < end)}):
        yield first, uses_before(sequence, first + 1)


def adapter_rows(segments: abc.Sequence[Segment]) -> list[AdapterRows]:
    """Return the rows of each adapter; neighbouring rows with the same adapters share their entries."""
    ranges: list[AdapterRows] = []
    last: Uses = ()
    begin = end = 0
    for segment in segments:
        sequence, row_begin, row_end, pos0, *_ = segment
        if is_split(segment):
            runs = runs_of(sequence, pos0, pos0 + row_end - row_begin)
        else:
            runs = iter(((pos0, uses_of(sequence)),))
        for first, uses in runs:
            if uses != last:
                row = row_begin + first - pos0
                ranges += [AdapterRows(begin, row, handle, weight) for handle, weight in last]
                last, begin = uses, row
        end = row_end
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
