"""Rows of text with aligned columns, and the notes below them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with their columns aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def notes(items: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each note about a plugin or a library."""
    for item in items:
        yield from (f"  {item['name']}: {text}" for text in item["notes"])
