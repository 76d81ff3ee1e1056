"""The lines of a report: what was checked, and what to do where it failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from infeng_core.api import printable

State = Literal["ok", "failed", "skipped"]

UNEQUAL = "compare the order of additions, the rounding and the tails of rows with docs/numerics.md"
"""What to do where a kernel's results are not those of the reference."""


@dataclass(frozen=True)
class Line:
    """The outcome of one check."""

    part: str
    """What was checked: "kernel rmsnorm_c"."""
    state: State
    text: str
    remedy: str = ""
    """What to do; every failed line has one."""


def ok(part: str, text: str) -> Line:
    """Return the line of a check that passed."""
    return Line(part, "ok", text)


def failed(part: str, text: str, remedy: str) -> Line:
    """Return the line of a check that failed."""
    return Line(part, "failed", text, remedy)


def skipped(part: str, text: str, remedy: str = "") -> Line:
    """Return the line of a check that could not be made."""
    return Line(part, "skipped", text, remedy)


def as_text(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the report for people."""
    width = max((len(line.part) for line in lines), default=0)
    for line in lines:
        mark = "FAILED" if line.state == "failed" else line.state
        yield f"{mark:8} {line.part:{width}}  {printable(line.text)}"
        if line.remedy:
            yield f"{'':8} {'':{width}}  {'do' if line.state == 'failed' else 'to check it'}: {printable(line.remedy)}"
    yield ""
    yield verdict(lines)


def verdict(lines: Iterable[Line]) -> str:
    """Return the last line of a report."""
    states = [line.state for line in lines]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "failed", "skipped") if state in states)
    return f"{'not green' if 'failed' in states else 'green'}: {counts}"
