"""The parts of a page that needs nothing but itself: its style, tables that scroll, and sections that fold."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STYLE = """
:root { --ink: #222; --soft: #666; --rule: #ddd; --head: #f3f3f3; --bad: #b3261e; --good: #1b6e3c }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink) }
.lead { font-size: 1.25rem; line-height: 1.4; margin: 1rem 0 } .facts, .note { color: var(--soft) }
.scroll { overflow-x: auto; margin: .75rem 0 } table { border-collapse: collapse }
td, th { border: 1px solid var(--rule); padding: .25rem .6rem; text-align: right; white-space: nowrap }
td:first-child, th { text-align: left } th { background: var(--head) } td.words { white-space: normal }
h2 { margin-top: 2.5rem; border-bottom: 2px solid var(--rule) }
details { margin: .75rem 0; border: 1px solid var(--rule); border-radius: 4px; padding: .25rem .75rem }
summary { cursor: pointer; font-weight: 600; padding: .25rem 0 }
pre { overflow-x: auto; background: var(--head); padding: .8rem; max-height: 40rem }
.busy { border-left: 4px solid #c25700; padding-left: .6rem }
.worse { color: var(--bad) } .better { color: var(--good) }
"""

UNFOLD = """<script>
document.querySelectorAll('details').forEach(fold => fold.addEventListener('toggle', () => {
  if (fold.open) fold.querySelectorAll('.js-plotly-plot').forEach(plot => window.Plotly.Plots.resize(plot));
}));
</script>"""
"""A chart that was drawn while its section was folded has no size until it is told to look again."""


def document(title: str, body: str, script: str = "") -> str:
    """Return a whole page. script: what charts need before them."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><title>{text(title)}</title>"
        f"<style>{STYLE}</style>{script}</head><body><h1>{text(title)}</h1>{body}{UNFOLD if script else ''}"
        "</body></html>\n"
    )


def folded(summary: str, body: str, *, is_open: bool = False) -> str:
    """Return a section that folds; "" without a body."""
    return f"<details{' open' if is_open else ''}><summary>{text(summary)}</summary>{body}</details>" if body else ""


def table(rows: Sequence[Mapping[str, Any]], heads: Mapping[str, str] | None = None) -> str:
    """Return a table of rows by column, which scrolls instead of being clipped; "" without rows.

    heads: headings of columns that have other names. Values are texts already.
    """
    if not rows:
        return ""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{text((heads or {}).get(name, name))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(row.get(name, "")) for name in columns) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values, one a row; "" without rows."""
    body = "".join(f"<tr><th>{text(name)}</th>{_cell(value)}</tr>" for name, value in rows)
    return f"<div class='scroll'><table>{body}</table></div>" if body else ""


def _cell(value: Any) -> str:
    words = text(value)
    return f"<td class='words'>{words}</td>" if len(words) > 60 else f"<td>{words}</td>"


def text(value: Any) -> str:
    """Return a value as text of a page, whatever it has of markup."""
    return html.escape(str(value), quote=True)
