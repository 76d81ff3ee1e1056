"""A history as one page that opens without a network: a sentence, a chart, what changed, and every figure over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from infeng_report import html
from infeng_report.charts import Figures

from infeng_nightly.changes import changes
from infeng_nightly.figures import OURS, Figure
from infeng_nightly.history import Run
from infeng_nightly.report import shown

TITLE = "INF-ENG night by night"
COLOURS = ("#1f6fb4", "#c25700", "#2b8a3e", "#9c36b5", "#b8860b", "#c92a2a")
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of our engine, then of other engines."""
MOST_CHARTS = 200
MOST_RUNS = 1000
"""Latest runs that are drawn."""

Line = tuple[str, str, list[tuple[str, Figure]]]
"""A processor, an engine, and its figure at each time."""


def page(runs: Sequence[Run]) -> str:
    """Return the HTML of the runs of a history, the oldest first, with figures in the last one at least."""
    runs = [run for run in runs if run.figures][-MOST_RUNS:]
    last = runs[-1]
    drawing = Drawing(runs)
    lead = main_figure(last)
    parts = [f"<p class='lead'>{html.text(headline(runs))}</p>", drawing.lead(lead), _judged(last), _changes(runs)]
    count = 0
    for model, group in groupby(sorted(drawing.lines, key=lambda key: key[0]), key=lambda key: key[0]):
        keys = [key for key in group if (count := count + 1) <= MOST_CHARTS]
        charts = "".join(drawing.chart(key) for key in keys)
        parts.append(html.folded(f"{model}: every figure over time", charts))
    parts.append(html.folded(f"Figures of the last run, {_moment(last)}", html.table(list(_figures(last)))))
    parts.append(html.folded(f"All runs: {len(runs)}", html.table(list(_runs(runs)))))
    return html.document(TITLE, "".join(parts), drawing.figures.script)


def main_figure(run: Run) -> Figure:
    """Return the figure of a run that stands first: decoding, or else the first one."""
    own = [one for one in run.figures if one.engine == OURS] or list(run.figures)
    return next((one for one in own if one.kind.label == "decoding"), own[0])


def headline(runs: Sequence[Run]) -> str:
    """Return the sentence with which the page begins."""
    last = runs[-1]
    lead = main_figure(last)
    alike = [run for run in runs if run.processor == last.processor]
    said = f"{lead.name}: {shown(lead.kind.unit, lead.median)} on {last.processor}"
    own = next((one for one in last.judged if one.get("figure") == lead.name), None)
    if own is not None and isinstance(own.get("change"), float) and own.get("runs"):
        said += f", {100 * float(own['change']):+.1f}% against its {_count(own['runs'])} before"
    worse = [str(one.get("figure")) for one in last.judged if one.get("verdict") == "worse"]
    if worse:
        more = f" and {len(worse) - 3} more" if len(worse) > 3 else ""
        count = f"{len(worse)} figure{'s' if len(worse) > 1 else ''}"
        return f"{said}; {count} became worse in the last run: {'; '.join(worse[:3])}{more}."
    return f"{said}; nothing became worse in the last of {_count(len(alike))}."


def _count(runs: object) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


class Drawing:
    """Draws the figures of a history as lines over time: a colour per processor, a dash per engine."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """Sort the figures of the runs into lines."""
        self.figures = Figures()
        self.processors = list(dict.fromkeys(run.processor for run in runs))
        self.engines = [OURS, *sorted({one.engine for run in runs for one in run.figures} - {OURS})]
        self.lines: dict[tuple[str, ...], dict[tuple[str, str], list[tuple[str, Figure]]]] = {}
        """(model, what, work, label) -> (processor, engine) -> its points."""
        for run in runs:
            for one in run.figures:
                lines = self.lines.setdefault(one.key[1:], {})
                lines.setdefault((run.processor, one.engine), []).append((run.time, one))

    def lead(self, figure: Figure) -> str:
        """Return the first chart: this figure above, and what the model's formats lose below, at the same times."""
        quality = [
            key for key, lines in self.lines.items()
            if key[0] == figure.model and any(one.kind.unit == "nats" for own in lines.values() for _, one in own)
        ]  # fmt: skip
        return self._draw([figure.key[1:], *quality[:1]], "Speed above, loss of quality below" if quality else "")

    def chart(self, key: tuple[str, ...]) -> str:
        """Return the chart of one figure."""
        return self._draw([key], "")

    def _draw(self, keys: Sequence[tuple[str, ...]], title: str) -> str:
        """Return a chart with a panel per figure, one below the other."""
        figure = self.figures.panels(len(keys))
        named: set[str] = set()
        for row, key in enumerate(keys, 1):
            for (processor, engine), points in self.lines[key].items():
                name = processor if engine == OURS else f"{engine}, {processor}"
                figure.add_scatter(
                    row=row, col=1, name=html.text(name), legendgroup=name, showlegend=name not in named,
                    **self._line(processor, engine, points),
                )  # fmt: skip
                named.add(name)
            kind = next(iter(self.lines[key].values()))[0][1].kind
            figure.update_yaxes(title_text=html.text(f"{kind.label}, {kind.unit}"), rangemode="tozero", row=row, col=1)
        model, what, work, label = keys[0]
        words = title or f"{model}: {label}" + (f", {work}" if work else "")
        figure.update_layout(
            title={"text": html.text(words), "subtitle": {"text": html.text(what)}} if not title else html.text(words),
            height=140 + 260 * len(keys), legend={"orientation": "h", "y": -0.08 if len(keys) > 1 else -0.15},
        )  # fmt: skip
        return self.figures.drawn(figure)

    def _line(self, processor: str, engine: str, points: Sequence[tuple[str, Figure]]) -> dict[str, Any]:
        """Return the trace of a line: medians with the bounds of their intervals."""
        colour = COLOURS[self.processors.index(processor) % len(COLOURS)]
        factor = 100 if points[0][1].kind.unit == "%" else 1
        medians = [factor * one.median for _, one in points]
        above = [max(0.0, factor * one.high - value) for (_, one), value in zip(points, medians, strict=True)]
        below = [max(0.0, value - factor * one.low) for (_, one), value in zip(points, medians, strict=True)]
        return {
            "x": [time for time, _ in points], "y": medians, "mode": "lines+markers",
            "line": {"color": colour, "dash": DASHES[self.engines.index(engine) % len(DASHES)]},
            "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1},
            "hovertext": [html.text(shown(one.kind.unit, one.median)) for _, one in points], "hoverinfo": "x+text+name",
        }  # fmt: skip


def _judged(last: Run) -> str:
    """Return what became worse or better in the last run; "" if nothing did."""
    rows = [
        {
            "figure": one.get("figure"),
            "": one.get("verdict"),
            "change": _percent(one.get("change")),
            "99% interval": f"{_percent(one.get('low'))} to {_percent(one.get('high'))}",
            "runs before": one.get("runs"),
        }
        for one in last.judged
        if one.get("verdict") in ("better", "worse")
    ]
    return f"<h2>Worse and better in the last run</h2>{html.table(rows)}" if rows else ""


def _changes(runs: Sequence[Run]) -> str:
    """Return what else is different since the run before, on the same processor."""
    last = runs[-1]
    before = next((run for run in reversed(runs[:-1]) if run.processor == last.processor), None)
    if before is None:
        return "<h2>What changed</h2><p>This is the first run of this processor.</p>"
    found = changes(before, last)
    head = f"<h2>What changed since {html.text(_moment(before))}</h2>"
    if not found:
        return f"{head}<p>The versions, the kernels, the settings and the machine are the same.</p>"
    rows = [{"what": what, "before": old, "now": new} for what, old, new in found]
    return head + html.table(rows)


def _figures(run: Run) -> Iterable[dict[str, Any]]:
    said = {str(one.get("figure")): one for one in run.judged}
    for one in run.figures:
        own = said.get(one.name, {})
        yield {
            "figure": one.name,
            "median": shown(one.kind.unit, one.median),
            "interval": f"{shown(one.kind.unit, one.low)} to {shown(one.kind.unit, one.high)}",
            "readings": len(one.readings),
            "better is": one.kind.better,
            "change": _percent(own.get("change")) if own.get("runs") else "",
            "machine": "quiet" if one.quiet else "busy",
        }


def _runs(runs: Sequence[Run]) -> Iterable[dict[str, Any]]:
    for run in reversed(runs):
        lead = main_figure(run)
        worse = sum(one.get("verdict") == "worse" for one in run.judged)
        yield {
            "time": _moment(run), "processor": run.processor, "commit": run.commit or "",
            lead.kind.label: shown(lead.kind.unit, lead.median), "figures": len(run.figures), "worse": worse,
        }  # fmt: skip


def _moment(run: Run) -> str:
    """Return the time of a run without seconds: 2026-11-14 02:30."""
    return run.time[:16].replace("T", " ")


def _percent(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e6
    return f"{100 * value:+.1f}%" if is_number else ""
