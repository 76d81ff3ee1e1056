"""What a night says: a table of its figures, and a sentence for each that changed."""

from __future__ import annotations

from collections.abc import Sequence

from infeng_bench.api import columns
from infeng_report.units import digits

from infeng_nightly.judging import Judgement


def lines(judged: Sequence[Judgement], *, processor: str) -> list[str]:
    """Return the printed lines: every figure, then what became worse and better."""
    table = [["", "median", "from", "to", "change", "from", "to", "runs"]]
    for one in judged:
        figure, change = one.figure, ["", "", ""]
        if one.runs:
            change = [f"{100 * value:+.1f}%" for value in (one.change, one.low, one.high)]
        numbers = [shown(figure.kind.unit, value) for value in (figure.median, figure.low, figure.high)]
        table.append([figure.name, *numbers, *change, str(one.runs)])
    found = [processor, *columns(table)]
    found += [sentence(one) for one in judged if one.verdict in ("better", "worse")]
    if not any(one.verdict == "worse" for one in judged):
        count = sum(one.runs > 0 for one in judged)
        found.append(f"no figure became worse, of {count} with earlier runs of this processor")
    return found


def sentence(one: Judgement) -> str:
    """Return a sentence about a figure that changed."""
    what = "REGRESSION" if one.verdict == "worse" else "better"
    unit = one.figure.kind.unit
    was = "" if one.before is None else f", {shown(unit, one.before)} before"
    runs = "1 run" if one.runs == 1 else f"{one.runs} runs"
    busy = "" if one.figure.quiet else "; other programs used the cores meanwhile"
    return (
        f"{what}: {one.figure.name}: {abs(one.change):.1%} {'worse' if one.change < 0 else 'better'} "
        f"({one.low:+.1%} to {one.high:+.1%}, 99%), {shown(unit, one.figure.median)} now{was}, {runs}{busy}"
    )


def shown(unit: str, value: float) -> str:
    """Return a value with its unit and three digits."""
    if unit == "%":
        return f"{100 * value:.1f}%"
    if unit == "times":
        return f"{value:.5f}"
    return f"{digits(value)} {unit}"
