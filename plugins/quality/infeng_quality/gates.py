"""Gates: limits that a figure must meet with 95% confidence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infeng_core.api import UsageError, unknown_key_remedy

_FORM = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")

FIGURES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "ppl_ratio": (("ppl_ratio", "value"), ("ppl_ratio", "low"), ("ppl_ratio", "high")),
    "nll_difference": (("nll_difference", "value"), ("nll_difference", "low"), ("nll_difference", "high")),
    "kl": (("kl", "mean"), ("kl_interval", "low"), ("kl_interval", "high")),
    "top1": (("top1",), ("top1_interval", "low"), ("top1_interval", "high")),
    **{f"kl.{name}": (("kl", name),) * 3 for name in ("median", "p99", "max")},
    "bytes": (("bytes",),) * 3,
    "bits_per_weight": (("candidate", "bits_per_weight"),) * 3,
    "greedy": (("greedy", "median_first_difference"),) * 3,
}
"""Name -> paths of value, lower bound and upper bound in a result; without an interval all are the value's."""


OF_TOKENS = ("ppl_ratio", "nll_difference", "kl", "top1", "kl.median", "kl.p99", "kl.max", "greedy")
"""Figures that a comparison has again for each adapter."""


@dataclass(frozen=True)
class Gate:
    """A limit of a figure: ``<=`` is checked against the upper bound of its interval, ``>=`` against the lower."""

    figure: str
    sign: str
    bound: float

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return f"{self.figure}{self.sign}{self.bound:g}"

    def judge(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the gate's outcome for a result; a missing figure or NaN misses the gate."""
        value, low, high = (_at(result, path) for path in FIGURES[self.figure])
        judged = high if self.sign == "<=" else low
        passed = judged is not None and (judged <= self.bound if self.sign == "<=" else judged >= self.bound)
        return {"gate": str(self), "value": value, "bound_95": judged, "passed": bool(passed)}


def parse(text: str) -> list[Gate]:
    """Return the gates of ``ppl_ratio<=1.008,kl<=0.02,top1>=0.94``; raises UsageError."""
    found = []
    for part in text.split(","):
        match = _FORM.fullmatch(part)
        if match is None:
            raise UsageError(f"--gate {part!r}", "is none", "write figures and bounds as ppl_ratio<=1.008,top1>=0.94")
        name, sign, bound = match.groups()
        if name not in FIGURES:
            raise UsageError(f"--gate {name}", "no such figure", unknown_key_remedy(name, FIGURES))
        try:
            number = float(bound)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UsageError(f"--gate {part!r}", f"{bound} is no number", "write it as 1.008")
        found.append(Gate(name, sign, number))
    return found


def sentence(judged: Mapping[str, Any]) -> str:
    """Return the printed outcome of a gate."""
    whose = f"gate {judged['gate']}" + (f" with adapter {judged['adapter']}" if "adapter" in judged else "")
    if judged["passed"]:
        return f"{whose}: kept"
    if judged["bound_95"] is None:
        return f"{whose}: missed, there is no such figure in this result"
    return f"{whose}: missed, the value is {judged['value']:.5g}, its 95% bound {judged['bound_95']:.5g}"


def _at(result: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found: Any = result
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, (int, float)) and not math.isnan(found) else None
