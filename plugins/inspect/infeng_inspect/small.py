"""The small problems on which a kernel is tried. The module does without NumPy, so that a child starts fast."""

from __future__ import annotations

from collections.abc import Iterator

from infeng_core.api.kernels import Kernel, Problem, problems

CONTEXT = 320  # positions: more than one split of attention (256), and no multiple of it
ROW_SPAN = 24  # tails of rows in blocks of up to 16 show within it


def small(problem: Problem, kernel: Kernel) -> problems.Fields | None:
    """Return the fields of a small problem like ``problem`` that ``kernel`` accepts, or None where there is none.

    Op, formats, epilogues and row range stay; sizes become the smallest that show errors.
    """
    fields = {**problems.fields(problem), "workers": problem.workers}
    low, high = fields["rows"]
    fields["rows"] = [low, min(high, low + ROW_SPAN)]
    for sizes in (*_sizes(fields), {}):
        case = {**fields, **sizes}
        if kernel.accepts(problems.problem(case)):
            return case
    return None


def _sizes(fields: problems.Fields) -> Iterator[dict[str, int]]:
    """Yield sizes to try, the smallest first."""
    if fields["op"] == "shrink":
        yield {"n": min(fields["n"], 64), "k": _cut(fields["k"])}
    elif fields["op"] == "route":  # as many experts as there are
        yield {"k": _cut(fields["k"])}
    elif "weight" in fields:
        steps = problems.step_names(fields)
        is_gated = any(map(problems.is_gated, steps))
        # In wide groups, 320 outputs: a kernel that rounds each 64 of them separately is detected.
        for n in (640 if is_gated else 320,) if "quantize_wide" in steps else (80, 96, 128, 256):
            if n <= fields["n"] and not (is_gated and n % 32):
                yield {"n": n, "k": _cut(fields["k"])}
    elif "kv_heads" not in fields:
        yield {"n": _cut(fields["n"]), "k": _cut(fields["n"])}
    else:
        group = max(1, fields.get("heads", 0) // fields["kv_heads"])
        kv_heads = min(fields["kv_heads"], 2 if group <= 4 else 1)
        heads = {"heads": kv_heads * group} if "heads" in fields else {}
        yield {"kv_heads": kv_heads, "context": min(fields.get("context", CONTEXT), CONTEXT), **heads}


def _cut(size: int) -> int:
    """Return at most 1535 with the same tail: 5632 becomes 1024, 11008 becomes 1280."""
    return size if size <= 1024 else 1024 + size % 512
