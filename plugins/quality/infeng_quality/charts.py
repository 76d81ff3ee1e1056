"""Charts as SVG text; the page's style sheet sets their colours for light and dark mode."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 190, 90, 12, 34
COLOURS = 6
"""Number of the style sheet's colour classes, c0 to c5."""


class Point(NamedTuple):
    """A figure with its bounds, which equal the value if it has none."""

    value: float
    low: float
    high: float


def text(value: object) -> str:
    """Return a text escaped for HTML."""
    return html.escape(str(value), quote=True)


def number(value: float) -> str:
    """Return a formatted number, with more digits near 1, for ratios and shares."""
    if 0.9 <= abs(value) <= 1.1:
        return f"{value:.6g}"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"


def scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    """Return the linear map of [low, high] to [begin, end]; an empty range maps to the middle."""
    span = high - low
    return lambda value: (begin + end) / 2 if span <= 0 else begin + (value - low) / span * (end - begin)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers within [low, high]."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / about))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= about)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def intervals(title: str, rows: Sequence[tuple[str, Point]], mark: float | None = None) -> str:
    """Return a chart with a row per figure and its bounds as a bar. mark: position of a vertical line."""
    finite = [number for _, point in rows for number in point if math.isfinite(number)]
    if not finite:
        return ""
    values = [*finite, *([] if mark is None else [mark])]
    margin = 0.05 * (max(values) - min(values)) or abs(values[0]) * 0.01 or 1.0
    low, high = min(values) - margin, max(values) + margin
    x, height = scale(low, high, LEFT, WIDTH - RIGHT), TOP + 24 * len(rows) + BOTTOM
    parts = [_across(low, high, x, height)]
    if mark is not None:
        parts.append(f"<line class='mark' x1='{x(mark):.1f}' x2='{x(mark):.1f}' y1='{TOP}' y2='{height - BOTTOM}'/>")
    for index, (name, point) in enumerate(rows):
        y = TOP + 24 * index + 12
        a, b = x(max(point.low, low)), x(min(point.high, high))
        parts.append(f"<text class='name' x='{LEFT - 8}' y='{y + 4}'>{text(name)}</text>")
        parts.append(f"<line class='bar c0' x1='{a:.1f}' x2='{b:.1f}' y1='{y}' y2='{y}'/>")
        tip = f"{name}: {number(point.value)} ({number(point.low)} to {number(point.high)})"
        parts.append(
            f"<circle class='dot c0' cx='{x(point.value):.1f}' cy='{y}' r='4'><title>{text(tip)}</title></circle>"
        )
        parts.append(f"<text class='value' x='{WIDTH - RIGHT + 8}' y='{y + 4}'>{number(point.value)}</text>")
    return _figure(title, height, parts)


def columns(title: str, histogram: Mapping[str, Sequence[float]], unit: str) -> str:
    """Return a histogram; counts[i] is the number of values from edges[i] to the next edge."""
    counts, edges = histogram["counts"], histogram["edges"]
    if not counts:
        return ""
    height, total = 220, sum(counts) or 1
    y = scale(0, max(counts) or 1, height - BOTTOM, TOP)
    wide = (WIDTH - 40) / len(counts)
    parts = []
    for index, (count, edge) in enumerate(zip(counts, edges, strict=True)):
        tip = f"from {edge:g} {unit}: {count} ({count / total:.2%})"
        x, top = 20 + index * wide, y(count)
        parts.append(
            f"<rect class='fill c0' x='{x:.1f}' y='{top:.1f}' width='{max(1.0, wide - 1):.1f}' "
            f"height='{height - BOTTOM - top:.1f}'><title>{text(tip)}</title></rect>"
        )
        if index % max(1, len(counts) // 8) == 0:
            parts.append(f"<text class='tick' x='{x + wide / 2:.1f}' y='{height - 14}'>{edge:.1g}</text>")
    return _figure(title, height, parts)


def lines(title: str, series: Mapping[str, Sequence[tuple[str, Point]]], unit: str = "") -> str:
    """Return a chart with a line per series, [(time, point), ...], over all times, with bounds as a band."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    times = sorted({time for points in series.values() for time, _ in points})
    values = [number for points in series.values() for _, point in points for number in point if math.isfinite(number)]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or abs(high) * 0.01 or 1.0
    low, high, height = low - margin, high + margin, 260
    x = scale(0, len(times) - 1, 70, WIDTH - 30)
    y = scale(low, high, height - BOTTOM, TOP)
    parts = []
    for value in ticks(low, high):
        parts.append(f"<line class='grid' x1='70' x2='{WIDTH - 30}' y1='{y(value):.1f}' y2='{y(value):.1f}'/>")
        parts.append(f"<text class='name' x='64' y='{y(value) + 4:.1f}'>{number(value)}</text>")
    parts += [
        f"<text class='tick' x='{x(times.index(time)):.1f}' y='{height - 12}'>{text(time[:10])}</text>"
        for time in times[:: max(1, (len(times) + 5) // 6)]
    ]
    for order, (name, points) in enumerate(series.items()):
        colour = f"c{order % COLOURS}"
        at = [(x(times.index(time)), point) for time, point in points]
        upper = [f"{px:.1f},{y(min(point.high, high)):.1f}" for px, point in at]
        lower = [f"{px:.1f},{y(max(point.low, low)):.1f}" for px, point in reversed(at)]
        parts.append(f"<polygon class='band {colour}' points='{' '.join(upper + lower)}'/>")
        path = " ".join(f"{px:.1f},{y(point.value):.1f}" for px, point in at)
        parts.append(f"<polyline class='line {colour}' points='{path}'/>")
        for (px, point), (time, _) in zip(at, points, strict=True):
            tip = f"{name}, {time}: {number(point.value)} {unit}".strip()
            parts.append(
                f"<circle class='dot {colour}' cx='{px:.1f}' cy='{y(point.value):.1f}' r='3'>"
                f"<title>{text(tip)}</title></circle>"
            )
    keys = " ".join(
        f"<span class='key'><i class='c{order % COLOURS}'></i>{text(name)}</span>" for order, name in enumerate(series)
    )
    return _figure(title, height, parts, f"<p class='keys'>{keys}</p>")


def _across(low: float, high: float, x: Callable[[float], float], height: int) -> str:
    parts = []
    for value in ticks(low, high):
        parts.append(f"<line class='grid' x1='{x(value):.1f}' x2='{x(value):.1f}' y1='{TOP}' y2='{height - BOTTOM}'/>")
        parts.append(f"<text class='tick' x='{x(value):.1f}' y='{height - 14}'>{number(value)}</text>")
    return "".join(parts)


def _figure(title: str, height: float, parts: Sequence[str], below: str = "") -> str:
    size = f"viewBox='0 0 {WIDTH} {height:g}' role='img' aria-label='{text(title)}'"
    return f"<figure><figcaption>{text(title)}</figcaption><svg {size}>{''.join(parts)}</svg>{below}</figure>"


def point(found: Any) -> Point:
    """Return an interval of a result, ``{"value", "low", "high"}``, or a number, as a point.

    Raises LookupError, TypeError, ValueError or OverflowError for other data.
    """
    if isinstance(found, Mapping):
        return Point(*(float(found[name]) for name in Point._fields))
    return Point(*(float(found),) * 3)
