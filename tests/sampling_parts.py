"""docs/numerics.md, "Sampling", word for word in Python and NumPy: what native sampling is compared with.

Each term is a method, so that a test that wants to see one wrong overrides just that one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infeng_core import _native

OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "seed": 0,
    "position": 0,
    "order": ("top_n_sigma", "top_k", "top_p", "min_p", "typical_p", "xtc"),
}


def exponential(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp of x <= 0."""

    def fma(a: Any, b: Any, c: Any) -> NDArray[np.float32]:
        return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)

    x = np.maximum(x, np.float32(-87.33))
    n = np.rint(x * np.float32(float.fromhex("0x1.715476p+0")))
    r = fma(n, np.float32(float.fromhex("-0x1.62e430p-1")), x)
    r = fma(n, np.float32(float.fromhex("0x1.05c610p-29")), r)
    terms = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
    p = np.full_like(x, np.float32(terms[0]))
    for term in terms[1:]:
        p = fma(p, r, np.float32(term))
    return np.ldexp(fma(p, r * r, r) + np.float32(1), n.astype(np.int32)).astype(np.float32)


def f32(value: float) -> float:
    return float(np.float32(value))


class Definition:
    """One row, from its changed logits (vocab,) to a token; what a mask leaves out is -infinity."""

    def __init__(self, logits: Any, **settings: Any) -> None:
        self.x = np.asarray(logits, np.float32)
        self.settings = OFF | settings
        self.left = np.flatnonzero(self.x > -np.inf)

    def draw(self) -> int:
        if self.settings["temperature"] == 0.0:
            return int(np.argmax(self.x))
        for name in self.settings["order"]:
            getattr(self, name)(self.settings[name] if name != "xtc" else self.settings["xtc_probability"])
        w = self.weights()
        target = self.random(0) * sum(w.values()) >> 64
        running = 0
        for i in self.ordered():
            running += w[i]
            if running > target:
                return i
        raise AssertionError("the weights do not reach the target")

    def ordered(self) -> list[int]:
        return sorted(self.left.tolist(), key=lambda i: (-self.x[i], i))

    def distances(self) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            x = self.x[self.left]
            return (x - x.max()) / np.float32(self.settings["temperature"])

    def shares(self) -> dict[int, np.float32]:
        return dict(zip(self.left.tolist(), exponential(self.distances()), strict=True))

    def weights(self) -> dict[int, int]:
        return {i: int(float(p) * 2**40) for i, p in self.shares().items()}

    def random(self, stream: int) -> int:
        seed, at = self.settings["seed"], self.settings["position"]
        words = _native.philox((seed & 0xFFFFFFFF, seed >> 32), (at & 0xFFFFFFFF, at >> 32, stream, 0))
        return words[0] | words[1] << 32

    def keep(self, kept: Any) -> None:
        self.left = np.array(sorted(kept), np.intp)

    # ----------------------------------------------------------------------------------------------- the filters ---

    def top_k(self, k: int) -> None:
        if k:
            self.keep(self.ordered()[:k])

    def top_p(self, share: float) -> None:
        if share == 1.0:
            return
        w = self.weights()
        total, running, kept = sum(w.values()), 0, []
        for i in self.ordered():
            kept.append(i)
            running += w[i]
            if running >= f32(share) * total:
                break
        self.keep(kept)

    def min_p(self, least: float) -> None:
        if least:
            self.keep(i for i, p in self.shares().items() if p >= np.float32(least))

    def typical_p(self, share: float) -> None:
        if share == 1.0:
            return
        w = self.weights()
        far = np.abs(self.distances() + self.mean_distance(w))
        order = sorted(zip(far.tolist(), self.left.tolist(), strict=True))
        target, running, kept = math.floor(f32(share) * float(sum(w.values()))), 0, []
        for _, i in order:
            kept.append(i)
            running += w[i]
            if self.exceeds(running, target):
                break
        self.keep(i for i in kept if w[i])

    def mean_distance(self, w: dict[int, int]) -> np.float32:
        whole = (
            (-self.distances()[[w[i] > 0 for i in self.left.tolist()]] * np.float32(2**20)).astype(np.int64).tolist()
        )
        weights = [w[i] for i in self.left.tolist() if w[i]]
        total = sum(weight * each for weight, each in zip(weights, whole, strict=True))
        return np.float32(float(total) / (float(sum(weights)) * 2.0**20))

    def exceeds(self, running: int, target: int) -> bool:
        return running > target

    def top_n_sigma(self, sigmas: float) -> None:
        if sigmas:
            least = float(self.x[self.left].max()) - f32(sigmas) * self.sigma(self.x[self.x > -np.inf].size - 1)
            self.keep(i for i in self.left.tolist() if float(self.x[i]) >= least)

    def sigma(self, divisor: int) -> float:
        if divisor < 1:
            return 0.0
        mean = self.lanes(lambda value: value) / (divisor + 1)
        return math.sqrt(self.lanes(lambda value: (value - mean) * (value - mean)) / divisor)

    def lanes(self, term: Any) -> float:
        lane = [0.0] * 16
        for i, value in enumerate(self.x.astype(np.float64).tolist()):
            lane[i % 16] += term(value) if value > -math.inf else 0.0
        for half in (8, 4, 2, 1):
            lane = [lane[j] + lane[j + half] for j in range(half)]
        return lane[0]

    def xtc(self, probability: float) -> None:
        if not (self.random(self.xtc_stream) >> 11) * 2.0**-53 < f32(probability):
            return
        w = self.weights()
        least = math.ceil(f32(self.settings["xtc_threshold"]) * float(sum(w.values())))
        choices = [i for i in self.ordered() if self.reaches(w[i], least)]
        if len(choices) > 1:
            self.keep(i for i in self.left.tolist() if w[i] and i not in self.dropped(choices))

    xtc_stream = 1

    def reaches(self, weight: int, least: int) -> bool:
        return weight >= least

    def dropped(self, choices: list[int]) -> list[int]:
        return choices[:-1]
