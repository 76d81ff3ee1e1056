"""Logits to ids: one native call per step, with every request's parameters as arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native
from infeng_core.batch import NOT_FINITE, Batch, Draws, RunningRequest, Segment
from infeng_core.errors import InfengError, KernelError, PluginError
from infeng_core.requests.processor_arrays import ProcessorArrays, guesses
from infeng_core.requests.processor_thread import PendingCalls, ProcessorThread
from infeng_core.requests.request import SamplingParams


def draw_seed() -> int:
    """Return a random seed for a request without one."""
    return int.from_bytes(os.urandom(8))  # from 0 to MAX_SEED


def confirmed(drawn: list[int], guesses: list[int]) -> list[int]:
    """Return the tokens that sampling one at a time would have given, none if none was drawn.

    drawn: the first follows the last known token, each other one follows a guess: (guesses + 1,), or fewer. A token
    counts if all guesses before it were drawn; the first wrong one still counts, as in a step without guesses.
    """
    right = 0
    while right < min(len(guesses), len(drawn) - 1) and guesses[right] == drawn[right]:
        right += 1
    return drawn[: right + 1]


class Sampler:
    """Picks one token per sampled row, by the rules of docs/numerics.md."""

    def __init__(
        self, max_samples: int, order: Iterable[str] = (), on_device: Callable[[SamplingParams], bool] | None = None
    ) -> None:
        """Allocate arrays for at most ``max_samples`` rows.

        order: of filters, by their names in ``_native.FILTERS``; filters that it leaves out follow in that order.
        on_device: whether the backend draws the tokens of requests with some parameters; None: of none.
        """
        self._on_device = on_device
        self._device_rows = np.empty(0, np.int32)  # of ``_rows``, those that the backend draws from
        self._rows: list[RunningRequest] = []  # sequences whose parameters the arrays hold
        self._is_processed = False  # whether any of them has logit processors
        self._thread = ProcessorThread()
        self._pending: PendingCalls | None = None  # the processors of the running batch
        self._temperature = np.zeros(max_samples, np.float32)
        self._top_k = np.zeros(max_samples, np.int32)
        self._top_p = np.ones(max_samples, np.float32)
        self._min_p = np.zeros(max_samples, np.float32)
        self._filters = {name: np.zeros(max_samples, np.float32) for name in _FEW_USE}
        self._order = _numbers(order)
        self._more: dict[str, Any] = self._order  # further arguments for the rows
        self._seed = np.zeros(max_samples, np.uint64)
        self._position = np.zeros(max_samples, np.int64)
        self._out = np.zeros(max_samples, np.int32)

    @property
    def helper(self) -> int | None:
        """The thread that calls processors beside a step; None before the first call."""
        return self._thread.thread

    def begin(self, batch: Batch) -> None:
        """Call the processors of a batch beside its run, if the previous batch had any."""
        if self._is_processed:
            self._pending = self._thread.submit(batch)

    def marked(self, batch: Batch) -> Batch:
        """Return a batch with its ``draws``, if the backend draws any of its tokens."""
        if self._on_device is None:
            return batch
        self._follow(batch)
        samples = self._device_rows
        if not len(samples):
            return batch
        positions = batch.positions[batch.sample_rows[samples]].astype(np.int64) + 1
        params = [self._rows[row].request.params for row in samples.tolist()]
        return batch._replace(draws=Draws(samples, positions, self._seed[samples], params))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def pick(
        self, logits: NDArray[np.float32], batch: Batch, sampled: Callable[[], NDArray[np.int32]] | None = None
    ) -> list[list[int]]:
        """Return the new tokens of each segment that has sampled rows: one, and one more for each right guess.

        logits: (samples, vocab) float32. A row from which no token can be drawn gives NOT_FINITE, always the last. A
        segment with late logit processors has none. sampled: returns the tokens of ``batch.draws``.
        """
        if batch.draws is not None:
            assert sampled is not None
            self._out[batch.draws.samples] = _valid(sampled(), len(batch.draws.samples), logits.shape[1])
        drawn, counts, errors = self._draw(logits, batch)
        tokens: list[list[int]] = []
        row = 0
        for segment in batch.segments:
            count = segment.sampled
            if count == 1 and not segment.known:
                tokens.append([drawn[row]] if counts.get(row, 1) else [])
            elif count:
                first = row + segment.known
                end = first + counts.get(first, count - segment.known)
                tokens.append(confirmed(drawn[first:end], guesses(batch, segment)))
            if count and self._is_processed and tokens[-1]:
                _blame(segment, row + segment.known + len(tokens[-1]) - 1, errors)
            row += count
        return tokens

    def _draw(
        self, logits: NDArray[np.float32], batch: Batch
    ) -> tuple[list[int], Mapping[int, int], Mapping[int, InfengError]]:
        """Return each sampled row's id, ``ProcessorArrays.counts``, and the errors of rows without an id, by row."""
        self._follow(batch)
        count = len(self._rows)
        out = self._out[:count]
        host = None if batch.draws is None else np.delete(np.arange(count), batch.draws.samples)
        # The counter of the random numbers is the position of the token that is being chosen.
        np.add(batch.positions[batch.sample_rows], 1, out=self._position[:count])
        if not self._is_processed:
            self._sample(logits, out, {}, host)
            return out.tolist(), {}, {}
        changes = self._changes(batch)
        self._sample(logits, out, changes.arguments(), host)
        errors = changes.refuse(out)
        return out.tolist(), changes.counts, errors

    def _changes(self, batch: Batch) -> ProcessorArrays:
        pending, self._pending = self._pending, None
        if pending is None or pending.batch is not batch:
            pending = self._thread.submit(batch)
        return pending.result()

    def _follow(self, batch: Batch) -> None:
        rows = [segment.sequence for segment in batch.segments for _ in range(segment.sampled)]
        if rows != self._rows:
            self._take_parameters(rows)

    def _sample(
        self,
        logits: NDArray[np.float32],
        out: NDArray[np.int32],
        changes: dict[str, Any],
        host: NDArray[np.intp] | None,
    ) -> None:
        """Draw the tokens of all rows, or of the rows ``host`` alone, to which all ``changes`` belong."""
        more, drawn = self._more, out
        where: Any = slice(len(out)) if host is None else host
        if host is not None:
            logits, drawn = logits[host], np.empty(len(host), np.int32)
            changes = {
                key: of._replace(rows=np.searchsorted(host, of.rows).astype(np.int32)) for key, of in changes.items()
            }
            if "filters" in more:
                more = more | {"filters": _native.Filters(*(values[host] for values in more["filters"]))}
        if not len(drawn):
            return
        try:
            _native.sample(
                logits,
                self._temperature[where],
                self._top_k[where],
                self._top_p[where],
                self._min_p[where],
                self._seed[where],
                self._position[where],
                drawn,
                **more,
                **changes,
            )
        except _native.NativeError as error:
            raise KernelError("sampling", str(error)) from error
        if host is not None:
            out[host] = drawn

    def _take_parameters(self, rows: list[RunningRequest]) -> None:
        self._rows = []  # set again once all are in place
        for row, sequence in enumerate(rows):
            params = sequence.request.params
            self._temperature[row] = params.temperature
            self._top_k[row] = params.top_k
            self._top_p[row] = params.top_p
            self._min_p[row] = params.min_p
            self._seed[row] = sequence.seed
        self._more = self._order | self._filters_of(rows)
        self._is_processed = any(sequence.processors is not None for sequence in rows)
        if self._on_device is not None:
            chosen = [row for row, sequence in enumerate(rows) if not _is_host(sequence)]
            chosen = [row for row in chosen if self._on_device(rows[row].request.params)]
            self._device_rows = np.array(chosen, np.int32)
        self._rows = rows

    def _filters_of(self, rows: list[RunningRequest]) -> dict[str, Any]:
        """Return the argument for the rarely used filters: none if no row uses them."""
        every = [sequence.request.params for sequence in rows]
        if not any(one.typical_p < 1.0 or one.top_n_sigma or one.xtc_probability for one in every):
            return {}
        for name, values in self._filters.items():
            values[: len(rows)] = [getattr(params, name) for params in every]
        return {"filters": _native.Filters(*(values[: len(rows)] for values in self._filters.values()))}


_FEW_USE = _native.Filters._fields


def _numbers(order: Iterable[str]) -> dict[str, Any]:
    """Return the argument for an order of filters: none for the order of ``_native.FILTERS``."""
    names = tuple(dict.fromkeys((*order, *_native.FILTERS)))
    return {} if names == _native.FILTERS else {"order": np.array([*map(_native.FILTERS.index, names)], np.uint8)}


def _is_host(sequence: RunningRequest) -> bool:
    """Return whether only the host can draw a request's tokens."""
    params = sequence.request.params
    reports = params.logits or params.logprobs is not None or sequence.report_from is not None
    return reports or sequence.processors is not None


def _valid(drawn: NDArray[np.int32], count: int, vocab: int) -> NDArray[np.int32]:
    if drawn.shape == (count,) and ((drawn >= NOT_FINITE) & (drawn < vocab)).all():
        return drawn
    why = f"it returned {drawn.shape} tokens for {count} rows, or ids outside of the vocabulary of {vocab}"
    raise PluginError("sampled() of the backend", why, "use another backend, such as native")


def _blame(segment: Segment, row: int, errors: Mapping[int, InfengError]) -> None:
    """Store why the row of a request's newest token gave none, if its processors are the reason."""
    if segment.sequence.processors is not None:
        segment.sequence.processors.error = errors.get(row)
