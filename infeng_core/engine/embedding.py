"""Prompts become vectors: requests of one token, whose hidden states are pooled step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from infeng_core.batch import Batch
from infeng_core.engine.submission import Submissions, abandon
from infeng_core.requests.input import AdaptersOf, Prompts
from infeng_core.requests.pooling import Pooled, Pooling
from infeng_core.requests.request import SamplingParams
from infeng_core.requests.stream import Stream

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)
"""Of a request that is there for its prompt."""


class Embeddings:
    """The calls that embed; steps have hidden states while there are any."""

    def __init__(self, submissions: Submissions) -> None:
        """Nothing is embedded yet."""
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
        """Return a vector for each prompt, (hidden,) float32, as ``Engine.embed`` says."""
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
        """Return a batch that asks for hidden states if a row of it is embedded."""
        if not self.calls:
            return batch
        return batch._replace(hidden=any(segment.sequence.pooling is not None for segment in batch.segments))


def pool(batch: Batch, hidden: NDArray[np.float32]) -> None:
    """Give the hidden states of a batch's rows, (rows, hidden), to those who want them."""
    for segment in batch.segments:
        if segment.sequence.pooling is not None:
            segment.sequence.pooling.take(segment.pos0, hidden[segment.row_begin : segment.row_end])
