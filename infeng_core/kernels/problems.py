"""Problems as plain data: to compare, to cache, to send to another process and to print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core._native import Problem

Fields = dict[str, Any]
"""A problem as plain data."""

ROW_BREAKPOINTS = (1, 8, 64)
"""Each range of batch sizes up to one of these has kernels of its own: one row is bound by memory, up to eight cost
little more, larger batches are bound by arithmetic."""

MAX_STACKED_RANK = 1024
"""Columns of u: stacked rank rows of all adapters of one row in one linear op."""

_FORMATS = ("weight", "act", "kv")
_SIZES = ("n", "k", "context", "heads", "kv_heads", "head_dim", "experts", "top_k")


def fields(problem: Problem) -> dict[str, Any]:
    """Return the fields that distinguish ``problem``, ready for JSON; fields that the op does not use are left out."""
    result: dict[str, Any] = {"op": problem.op}
    result |= {name: getattr(problem, name) for name in _FORMATS if getattr(problem, name)}
    if problem.steps:  # steps with scalars as [name, scalar, limit]
        result["epilogues"] = [step if isinstance(step, str) else list(step) for step in problem.steps]
    if problem.needs:
        result["needs"] = problem.needs
    result["rows"] = list(problem.rows)
    result |= {name: getattr(problem, name) for name in _SIZES if getattr(problem, name)}
    if problem.v_head_dim != problem.head_dim:
        result["v_head_dim"] = problem.v_head_dim
    return result


def step_names(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of a problem's steps, without their scalars."""
    return [step if isinstance(step, str) else step[0] for step in fields.get("epilogues", ())]


def is_gated(name: str) -> bool:
    """Return whether a step makes the result half as wide, as ``silu_mul`` does."""
    return name.endswith("_mul")


def problem(fields: Mapping[str, Any]) -> Problem:
    """Return the problem that ``fields`` describes."""
    rest = {name: value for name, value in fields.items() if name not in ("op", "rows")}
    return Problem(fields["op"], rows=(fields["rows"][0], fields["rows"][1]), **rest)


def row_ranges(most: int) -> list[tuple[int, int]]:
    """Return the ranges of batch sizes for which kernels are chosen: (1, 1), (2, 8), ... up to ``most`` rows."""
    ends = [*(rows for rows in ROW_BREAKPOINTS if rows < most), most]
    begins = [1, *(rows + 1 for rows in ends[:-1])]
    return list(zip(begins, ends, strict=True))


def kind(fields: Mapping[str, Any]) -> str:
    """Return the class of a problem: op, formats and rows, as in ``linear int4-g64 x int8-g64, rows 2-8``."""
    formats = " x ".join(str(fields[name]) for name in _FORMATS if name in fields)
    low, high = fields["rows"]
    rows = f"rows {low}" if low == high else f"rows {low}-{high}"
    return f"{' '.join(filter(None, (fields['op'], formats)))}, {rows}"


def describe(problem: Problem, rows: str = "") -> str:
    """Return a problem as people read it: ``linear int4-g64 x int8-g64 + residual, rows 2-8, n 2048, k 5632``."""
    data = fields(problem)
    text, _, own_rows = kind(data).partition(", rows ")
    fused = "".join(f" + {name}" for name in step_names(data))
    needs = "".join(f", {name.replace('_', ' ')}" for name in data.get("needs", ()))
    sizes = "".join(f", {n} {data[n]}" for n in (*_SIZES, "v_head_dim") if n in data)
    return f"{text}{fused}{needs}, rows {rows or own_rows}{sizes}"
