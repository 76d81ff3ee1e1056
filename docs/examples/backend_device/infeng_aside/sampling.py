"""Sampling as docs/numerics.md defines it, for requests without filters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core.api import SamplingParams
from infeng_core.api.engines import NOT_FINITE

_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "xtc_probability": 0.0}
_TERMS = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_WORD = 0xFFFFFFFF


def is_supported(params: SamplingParams) -> bool:
    """Return whether ``draw`` knows what a request asks for: greedy, or a temperature alone."""
    return params.temperature == 0.0 or all(getattr(params, name) == off for name, off in _OFF.items())


def draw(logits: NDArray[np.float32], temperature: float, seed: int, position: int) -> int:
    """Return the token of a row of logits, (vocab,), or NOT_FINITE."""
    if not np.isfinite(logits).all():
        return NOT_FINITE
    if temperature == 0.0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):
        shares = exponential((logits - logits.max()) / np.float32(temperature))
    order = np.argsort(-logits, kind="stable")  # the largest first, equals by id
    sums = np.cumsum((shares[order].astype(np.float64) * 2.0**40).astype(np.int64))
    target = uniform(seed, position) * int(sums[-1]) >> 64
    return int(order[np.searchsorted(sums, target, side="right")])


def exponential(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return exp of x <= 0 with the steps of docs/numerics.md."""
    x = np.maximum(x, np.float32(-87.33))
    n = np.rint(x * np.float32(float.fromhex("0x1.715476p+0")))
    r = fused(n, np.float32(float.fromhex("-0x1.62e430p-1")), x)
    r = fused(n, np.float32(float.fromhex("0x1.05c610p-29")), r)
    p = np.full_like(x, np.float32(1.9875691500e-4))
    for term in _TERMS:
        p = fused(p, r, np.float32(term))
    return np.ldexp(fused(p, r * r, r) + np.float32(1), n.astype(np.int32)).astype(np.float32)


def fused(a: Any, b: Any, c: Any) -> NDArray[np.float32]:
    """Return a * b + c; the product is exact in binary64."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def uniform(seed: int, position: int) -> int:
    """Return 64 random bits: Philox4x32-10 with the seed as key and the position as counter."""
    key, counter = (seed & _WORD, seed >> 32), (position & _WORD, position >> 32, 0, 0)
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (b >> 32) ^ counter[1] ^ key[0], b & _WORD, (a >> 32) ^ counter[3] ^ key[1], a & _WORD
        key = (key[0] + 0x9E3779B9) & _WORD, (key[1] + 0xBB67AE85) & _WORD
    return counter[0] | counter[1] << 32
