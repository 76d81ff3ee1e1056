"""Scores of two models on the same windows: figures per token, and their means with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import ModelError, UsageError
from infeng_quality.measures import Measures, measure
from infeng_quality.statistics import Interval, block_tokens, bootstrap, exp, join_blocks
from infeng_quality.teacher import Teacher
from infeng_quality.texts import Window

MANY_DOCUMENTS = 30
"""Number of documents from which on a block consists of whole documents."""

Progress = Callable[[int], object]
"""Called with the number of tokens read."""


def score(reference: Teacher, candidate: Teacher, window: Window) -> Measures:
    """Return the figures of a window's tokens, with the logits of one portion of rows in memory at a time.

    Raises ModelError if the figures are not finite, KernelError if an op fails.
    """
    ids = np.asarray(window.ids, np.int32)
    parts = []
    for (begin, p), (_, q) in zip(
        reference.logits(ids[:-1].tolist()), candidate.logits(ids[:-1].tolist()), strict=True
    ):
        parts.append(measure(p, q, ids[begin + 1 : begin + 1 + len(p)]))
    found = Measures(*(np.concatenate([part[index] for part in parts]) for index in range(4)))
    if not all(np.isfinite(one).all() for one in (found.nll, found.other, found.kl)):
        why = f"the logits of document {window.document} are not finite"
        raise ModelError("the models", why, "infeng doctor shows the kernels that they run with")
    return found


@dataclass(frozen=True)
class Scores:
    """The figures of all windows: sums per window, and the KL of every token."""

    windows: Sequence[Window]
    sums: NDArray[np.float64]
    """(windows, 4): nll of the reference, nll of the candidate minus that, KL, positions with the same top token."""
    kl: NDArray[np.float64]
    """KL of each token, (tokens,)."""

    @staticmethod
    def of(reference: Teacher, candidate: Teacher, windows: Sequence[Window], progress: Progress) -> Scores:
        """Score all windows with both models."""
        sums = np.zeros((len(windows), 4))
        divergences = []
        for index, window in enumerate(windows):
            found = score(reference, candidate, window)
            sums[index] = found.nll.sum(), (found.other - found.nll).sum(), found.kl.sum(), found.same.sum()
            divergences.append(found.kl)
            progress(window.predicted)
        return Scores(windows, sums, np.concatenate(divergences))

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Predicted tokens of each window, (windows,)."""
        return np.array([window.predicted for window in self.windows], np.int64)

    def blocks(self) -> NDArray[np.int64]:
        """Return the block of each window, (windows,).

        A block has windows of one text; with at least MANY_DOCUMENTS documents, a document is in one block.
        """
        tokens = self.tokens
        least = block_tokens(int(tokens.sum()))
        is_whole = len({(window.text, window.document) for window in self.windows}) >= MANY_DOCUMENTS
        keys = [(window.text, window.document, 0 if is_whole else window.part) for window in self.windows]
        units: NDArray[np.int64] = np.cumsum([index > 0 and key != keys[index - 1] for index, key in enumerate(keys)])
        held = np.bincount(units, weights=tokens).astype(np.int64)
        text = np.array([keys[index][0] for index in np.unique(units, return_index=True)[1]])
        found = np.empty(len(held), np.int64)
        first = 0
        for one in np.unique(text):
            found[text == one] = first + join_blocks(held[text == one], least)
            first = int(found[text == one].max()) + 1
        blocks: NDArray[np.int64] = found[units]
        return blocks

    def intervals(self, resamples: int, seed: int) -> tuple[list[Interval], int]:
        """Return the intervals of the means of ``sums``, and the number of blocks.

        Raises UsageError if there is only one block.
        """
        blocks = self.blocks()
        count = int(blocks.max()) + 1
        if count < 2:
            raise UsageError(
                "--texts", "one window of text gives no interval", "give more text, or a smaller --context"
            )
        sums = np.zeros((count, self.sums.shape[1]))
        np.add.at(sums, blocks, self.sums)
        counts = np.bincount(blocks, weights=self.tokens, minlength=count).astype(np.float64)
        return bootstrap(sums, counts, resamples=resamples, seed=seed), count

    def figures(self, resamples: int, seed: int) -> dict[str, Any]:
        """Return the figures of a result."""
        (nll, difference, kl, same), blocks = self.intervals(resamples, seed)
        median, p99 = np.percentile(self.kl, [50, 99])
        return {
            "ppl_ratio": difference.exp().to_dict(),
            "nll_difference": difference.to_dict(),
            "kl": {"mean": kl.value, "median": float(median), "p99": float(p99), "max": float(self.kl.max())},
            "kl_interval": {"low": kl.low, "high": kl.high},
            "top1": same.value,
            "top1_interval": {"low": same.low, "high": same.high},
            "perplexity": {
                "reference": exp(nll.value),
                "candidate": exp(nll.value + difference.value),
            },
            "kl_histogram": histogram(self.kl),
            "tokens": int(self.tokens.sum()),
            "documents": len({(window.text, window.document) for window in self.windows}),
            "windows": len(self.windows),
            "blocks": blocks,
            "resamples": resamples,
            "seed": seed,
        }

    def worst(self, count: int) -> list[int]:
        """Return the windows with the largest mean KL, the largest first."""
        mean = self.sums[:, 2] / self.tokens
        return [int(index) for index in np.argsort(-mean, kind="stable")[:count]]


EDGES = np.concatenate([[0.0], 10.0 ** np.arange(-8, 2.25, 0.25)])
"""Edges of the histogram of KL, in nats."""


def histogram(kl: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return the number of tokens with a KL in [edge, next edge); the last bin is open."""
    counts = np.bincount(np.searchsorted(EDGES, kl, side="right") - 1, minlength=len(EDGES))
    used = np.flatnonzero(counts)
    kept = slice(0, int(used[-1]) + 1)
    return {"edges": [float(f"{edge:.6g}") for edge in EDGES[kept]], "counts": counts[kept].tolist()}
