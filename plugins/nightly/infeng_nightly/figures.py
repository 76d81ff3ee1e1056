"""A figure of one run: repeated readings with their unit and direction, checked when it is read back."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infeng_bench.api import lower_bound, upper_bound

OURS = "infeng"
MOST_READINGS = 1000
MOST_TEXT = 500
"""Most characters of a name in a history."""
MOST_VALUE = 1e15

Better = Literal["higher", "lower"]
Scale = Literal["ratio", "share"]


@dataclass(frozen=True)
class Kind:
    """What a figure means: its label, its unit, and how two values of it are compared."""

    label: str
    unit: str
    better: Better
    scale: Scale = "ratio"
    """ratio: by their quotient. share: of a whole, such as a cost that may be 0 or below, by that of 1 + value."""
    least: float = 0.05
    """Smallest change that counts, as a share."""
    spread: float = 0.015
    """Standard deviation of the change from run to run that is assumed until a history shows it."""


@dataclass(frozen=True)
class Figure:
    """The readings of one figure in one run."""

    kind: Kind
    model: str
    what: str
    """The measurement: the words of the verb."""
    work: str
    """Which of the measurement's works, "" if it has one."""
    engine: str
    readings: tuple[float, ...]
    low: float
    """The lower bound of the median."""
    high: float
    quiet: bool = True
    """Whether the machine was quiet in most of the readings."""

    @property
    def key(self) -> tuple[str, ...]:
        """What it has in common with the same figure of other runs."""
        return self.engine, self.model, self.what, self.work, self.kind.label

    @property
    def name(self) -> str:
        """Its name for people."""
        whose = self.model if self.engine == OURS else f"{self.model}, {self.engine}"
        return f"{whose}: {self.kind.label}" + (f", {self.work}" if self.work else "")

    @property
    def median(self) -> float:
        """The median of its readings."""
        return statistics.median(self.readings)

    @staticmethod
    def of(
        kind: Kind, readings: Sequence[float], *, model: str, what: str, work: str = "", engine: str = OURS,
        interval: tuple[float, float] | None = None, quiet: bool = True,
    ) -> Figure:  # fmt: skip
        """Return the figure of some readings; its interval is that of their median, by order statistics, if none is
        given.
        """
        low, high = interval or (lower_bound(readings).value, upper_bound(readings).value)
        return Figure(kind, model, what, work, engine, tuple(map(float, readings)), low, high, quiet)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, as ``parse`` reads it."""
        kind = self.kind
        return {
            "name": kind.label, "model": self.model, "what": self.what, "work": self.work, "engine": self.engine,
            "unit": kind.unit, "better": kind.better, "scale": kind.scale, "least": kind.least, "spread": kind.spread,
            "median": self.median, "low": self.low, "high": self.high, "repeats": len(self.readings),
            "readings": list(self.readings), "quiet": self.quiet,
        }  # fmt: skip

    @staticmethod
    def parse(data: Any) -> Figure | None:
        """Return the figure of plain data; None if it is damaged."""
        if not isinstance(data, Mapping):
            return None
        names = ("name", "unit", "better", "scale", "model", "what", "work", "engine")
        words = [data.get(name) for name in names]
        numbers = [data.get(name) for name in ("least", "spread", "low", "high")]
        readings = data.get("readings")
        if not all(isinstance(word, str) and len(word) <= MOST_TEXT for word in words):
            return None
        if not isinstance(readings, list) or not 0 < len(readings) <= MOST_READINGS:
            return None
        if not all(map(_is_number, [*numbers, *readings])):
            return None
        label, unit, better, scale, model, what, work, engine = map(str, words)
        if better not in ("higher", "lower") or scale not in ("ratio", "share"):
            return None
        least, spread, low, high = (float(number or 0.0) for number in numbers)
        if not (0 <= least < 1 and 0 <= spread < 1 and low <= high):
            return None
        if any(reading <= (-1 if scale == "share" else 0) for reading in readings):
            return None
        kind = Kind(label, unit, better, scale, least, spread)  # type: ignore[arg-type]  # checked above
        return Figure(
            kind, model, what, work, engine, tuple(map(float, readings)), low, high, data.get("quiet") is True
        )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= MOST_VALUE and math.isfinite(value)
