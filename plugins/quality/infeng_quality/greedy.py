"""The first difference between two models' greedy texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from infeng_core.api import Engine, SamplingParams
from infeng_quality.texts import Window

TOKENS = 64
PROMPTS = 32
PROMPT_TOKENS = 32
"""Length of a prompt, which is the beginning of a window; at most half of the window."""


def divergence(
    reference: Engine, candidate: Engine, windows: Sequence[Window], adapter: str | None = None
) -> dict[str, Any]:
    """Return where the greedy texts of two engines first differ, over prompts from the beginnings of windows.

    adapter: name of an adapter that both use.

    Positions count from 0; identical texts count as ``TOKENS``.
    """
    prompts = [list(window.ids[: max(1, min(PROMPT_TOKENS, len(window.ids) // 2))]) for window in _spread(windows)]
    most = min(engine.limits.context for engine in (reference, candidate)) - 1
    prompts = [prompt for prompt in prompts if len(prompt) + TOKENS <= most]
    if not prompts:
        return {"tokens": TOKENS, "prompts": 0}
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    ours, theirs = (
        [one.token_ids for one in engine.generate(prompts, params, adapters=adapter)]
        for engine in (reference, candidate)
    )
    first = [first_difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    return {
        "tokens": TOKENS,
        "prompts": len(prompts),
        "median_first_difference": float(np.median(first)),
        "identical": sum(one == TOKENS for one in first) / len(first),
    }


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the first position at which two texts differ; the length of the shorter one if none."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _spread(windows: Sequence[Window]) -> list[Window]:
    """Return some windows, spread evenly over the texts."""
    chosen = np.linspace(0, len(windows) - 1, min(PROMPTS, len(windows)))
    return [windows[int(index)] for index in chosen]
