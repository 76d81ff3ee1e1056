"""The place of an activated adapter's invocation in a prompt.

An activated LoRA (aLoRA; Greenewald et al., 2025, arXiv 2504.12397) changes the rows from the last occurrence of its
invocation on, the invocation's own first row included, as in PEFT (``peft/tuners/lora/variants.py``,
``calculate_alora_offsets``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def last_occurrence(prompt: NDArray[np.int32], invocation: tuple[int, ...]) -> int | None:
    """Return the index in ``prompt`` (n,) at which the last occurrence of ``invocation`` begins; None without one."""
    places = np.arange(len(prompt) - len(invocation) + 1)
    for offset, token in enumerate(invocation):
        places = places[prompt[places + offset] == token]
    return int(places[-1]) if len(places) else None
