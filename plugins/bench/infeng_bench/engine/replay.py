"""Answers that are given: an engine computes every row, and the logits say that the next token is the answer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import Engine
from infeng_core.api.engines import Batch, RunningRequest

LARGE = np.float32(1e9)
"""A logit above all others."""


class Replay:
    """The executable of an engine, whose greedy requests get given answers.

    The model runs as always, so a step costs what it costs; after it, the logit of the answer's next token is raised
    in every sampled row. Drafts are the drafter's own, and are right where the answer goes on like them.
    """

    def __init__(self, engine: Engine) -> None:
        """Stand before the engine's executable until ``restore``."""
        self._engine, self._inner = engine, engine.executable
        self._answers: dict[tuple[int, ...], Sequence[int]] = {}  # by prompt
        self._running: dict[int, Sequence[int]] = {}  # by the id of a sequence
        engine.executable = self  # its other attributes are the executable's

    def __getattr__(self, name: str) -> Any:
        """Return the executable's attribute."""
        return getattr(self._inner, name)

    def expect(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Give requests of ``prompt`` this answer."""
        self._answers[tuple(prompt)] = answer

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Run a step; return its logits, (samples, vocab), with the answers' tokens raised."""
        logits = self._inner.run(batch)
        sample = 0
        for segment in batch.segments:
            sequence = segment.sequence
            answer = self._answer_of(sequence)
            first = segment.pos0 + segment.row_end - segment.row_begin - segment.sampled + 1 - sequence.prompt_length
            for step in range(segment.sampled):
                if 0 <= first + step < len(answer):
                    logits[sample + step, answer[first + step]] = LARGE
            sample += segment.sampled
        return logits

    def forget(self) -> None:
        """Forget all answers."""
        self._answers.clear()
        self._running.clear()

    def restore(self) -> None:
        """Give the engine its executable back."""
        self._engine.executable = self._inner

    def _answer_of(self, sequence: RunningRequest) -> Sequence[int]:
        if sequence.id not in self._running:
            prompt = tuple(sequence.tokens[: sequence.prompt_length].tolist())
            self._running[sequence.id] = self._answers.get(prompt, ())
        return self._running[sequence.id]
