"""Small cases that stand for a problem: same op, formats, epilogues and row range, sizes cut to what shows errors."""

from __future__ import annotations

from collections.abc import Iterator

from infeng_core._native import Kernel, Problem
from infeng_core.plug import problems
from infeng_core.plug.onelora import COLUMNS
from infeng_core.plug.problems import Fields

CONTEXT = 320  # positions: more than one split of attention (256), and no multiple of it
ROW_SPAN = 24  # tails of rows in blocks of up to 16 show within it


def small(problem: Problem, kernel: Kernel) -> Fields | None:
    """Return the fields of a small problem that ``kernel`` accepts, or None where no case can be made."""
    fields = problems.fields(problem)
    low, high = fields["rows"]
    fields["rows"] = [low, min(high, low + ROW_SPAN)]
    for sizes in (*_sizes(fields), {}):
        case = {**fields, **sizes}
        if kernel.accepts(problems.problem(case)):
            return case
    return None


def _sizes(fields: Fields) -> Iterator[dict[str, int]]:
    """Yield sizes to try, the smallest first."""
    op = fields["op"]
    if op in ("embed", "linear"):
        for n in (80, 96, 128, 256):
            if n <= fields["n"] and not (any(map(problems.is_gated, problems.step_names(fields))) and n % 32):
                yield {"n": n, "k": _cut(fields["k"])}
    elif op == "shrink":
        yield {"n": min(fields["n"], COLUMNS), "k": _cut(fields["k"])}
    elif op in ("rmsnorm", "epilogue"):
        yield {"n": _cut(fields["n"]), "k": _cut(fields["n"])}
    else:
        group = max(1, fields.get("heads", 0) // fields["kv_heads"])
        kv_heads = min(fields["kv_heads"], 2 if group <= 4 else 1)
        heads = {"heads": kv_heads * group} if "heads" in fields else {}
        yield {"kv_heads": kv_heads, "context": min(fields.get("context", CONTEXT), CONTEXT), **heads}


def _cut(size: int) -> int:
    """Return at most 1535 with the same tail: 5632 becomes 1024, 11008 becomes 1280."""
    return size if size <= 1024 else 1024 + size % 512
