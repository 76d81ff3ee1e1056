"""Hidden states: embedding requests, whose prompts' states are pooled step by step, and drafters that see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import Batch, Segment
from infeng_core.engine.submission import Submissions, abandon
from infeng_core.requests.input import AdaptersOf, Prompts
from infeng_core.requests.pooling import Pooled, Pooling
from infeng_core.requests.request import SamplingParams
from infeng_core.requests.stream import Stream

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)
"""Sampling parameters of a request for its prompt alone."""


class Embeddings:
    """The running calls of ``embed``; steps compute hidden states while there are any."""

    def __init__(self, submissions: Submissions) -> None:
        """Start without calls."""
        self.calls: set[object] = set()
        self._submissions = submissions

    def embed(
        self,
        prompts: Prompts,
        pooling: Pooling,
        adapters: AdaptersOf,
        normalize: bool,
        started: Callable[[Stream], object] | None,
    ) -> list[NDArray[np.float32]]:
        """Return a vector for each prompt, (hidden,) float32, as ``Engine.embed`` describes."""
        prepared = self._submissions.prepare(prompts, None, adapters)
        pooled = [Pooled(pooling, len(ids)) for _, ids in prepared]
        streams: list[Stream] = []
        self.calls.add(call := object())
        try:
            for (request, ids), states in zip(prepared, pooled, strict=True):
                streams.append(self._submissions.start(replace(request, params=_ONE_TOKEN), ids, pooling=states))
                if started is not None:
                    started(streams[-1])
            for stream in streams:
                stream.result()
        except BaseException:
            abandon(streams)
            raise
        finally:
            self.calls.discard(call)
        return [states.result(normalize) for states in pooled]

    def marked(self, batch: Batch) -> Batch:
        """Return a batch that requests hidden states if one of its rows is embedded, or seen by a drafter."""
        if not (self.calls or self._submissions.drafters_see):
            return batch
        return batch._replace(hidden=any(_wants(segment) for segment in batch.segments))


def _wants(segment: Segment) -> bool:
    sequence = segment.sequence
    return sequence.pooling is not None or (sequence.guesses is not None and sequence.guesses.sees)


def hand_out(batch: Batch, hidden: NDArray[np.float32]) -> None:
    """Pass the hidden states of a batch's rows, (rows, hidden), to the poolings and the guesses of their sequences."""
    for segment in batch.segments:
        pooling, guesses = segment.sequence.pooling, segment.sequence.guesses
        states = hidden[segment.row_begin : segment.row_end]
        if pooling is not None:
            pooling.take(segment.pos0, states)
        if guesses is not None and guesses.sees:
            guesses.see(segment.pos0, states, segment.sampled - segment.known)
