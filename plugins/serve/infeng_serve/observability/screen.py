"""Figures rendered as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from infeng_core.api import printable
from infeng_serve.observability.interval_statistics import Figures, Percentiles, Row

MOST_ROWS = 20
"""Most tenants, and adapters, that are shown, those with the most tokens first."""


def screen(shown: Figures, note: str = "", *, hint: str = "") -> RenderableType:
    """Return the figures as tables. note: such as why there are no newer ones. hint: the available keys."""
    parts: list[RenderableType] = [_head(shown), _latencies(shown)]
    if shown.tenants:
        parts.append(_rows("tenant", shown.tenants, ("rejected/s",), lambda row: (_rate(row.rejections),)))
    if shown.adapters:
        more = ("rank", "loaded", "load ms")
        parts.append(_rows("adapter", shown.adapters, more, lambda row: (row.rank, _loaded(row), _ms(row.load_ms))))
    parts += [Text(printable(text), style) for text, style in ((note, "red"), (hint, "dim")) if text]
    return Group(*parts)


def _head(shown: Figures) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    hits = "-" if shown.prefix_hit_rate is None else f"{shown.prefix_hit_rate:.0%}"
    for row in (
        ("model", printable(shown.model), "running", str(shown.running), "tokens/s", _rate(shown.generation_tokens)),
        ("memory", f"{shown.resident_bytes / 1e9:.2f} GB", "waiting", str(shown.waiting), "prompt tokens/s",
         _rate(shown.prompt_tokens)),
        ("cores", f"{shown.cores:.1f}", "predicted wait", f"{shown.predicted_wait_ms:.0f} ms", "requests/s",
         _rate(shown.requests)),
        ("cache", f"{shown.kv_cache_usage:.0%}", "prefix hits", hits, "rejected/s", _rate(shown.rejections)),
    ):  # fmt: skip
        table.add_row(*(Text(text, style="dim" if number % 2 == 0 else "bold") for number, text in enumerate(row)))
    return table


def _latencies(shown: Figures) -> Table:
    table = _table(("latency, ms", "p50", "p90", "p99"))
    for name, values in (("first token", shown.ttft_ms), ("between tokens", shown.itl_ms)):
        table.add_row(name, *_percentiles(values))
    return table


def _rows(title: str, rows: tuple[Row, ...], more: Iterable[str], of: Callable[[Row], Iterable[str]]) -> Table:
    table = _table((title, "in flight", "requests/s", "prompt tokens/s", "tokens/s", "ttft ms", *more))
    for row in rows[:MOST_ROWS]:
        rates = (row.requests, row.prompt_tokens, row.generation_tokens)
        table.add_row(Text(printable(row.name, 40)), str(row.in_flight), *map(_rate, rates), _ms(row.ttft_ms), *of(row))
    if len(rows) > MOST_ROWS:
        table.add_row(f"and {len(rows) - MOST_ROWS} more")
    return table


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _percentiles(values: Percentiles) -> Iterable[str]:
    return (_ms(values.get(name)) for name in ("p50", "p90", "p99"))


def _loaded(row: Row) -> str:
    return "-" if row.loaded is None else "yes" if row.loaded else "no"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
