"""A kernel against the reference: awkward cases of its op, the sizes of a model, and what the engine makes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from infeng_inspect.api import NoJudgeError, shape_and_formats

from infeng_core.api.formats import BUILTIN, format_lookup, use_families
from infeng_core.api.inspection import OPS, library_states, problem_fields
from infeng_core.api.kernels import Kernel, Problem, plain_kernel, row_ranges
from infeng_kit.cases import Case
from infeng_kit.checks.library import own_states
from infeng_kit.conformance import ROWS, different, different_at_size, fits, suite
from infeng_kit.model_problems import asked_in_formats
from infeng_kit.report import UNEQUAL, failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

FEATURES = "run the check on a processor that has them"


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report how a kernel, LIBRARY/KERNEL, differs from the reference, or from the plain kernel of its library's op."""
    library, _, wanted = name.partition("/")
    state = next(state for state in own_states(plan) if state.name == library)
    assert state.native is not None
    kernel = next(kernel for kernel in state.native.kernels if kernel.name == wanted)
    part, plugins = f"kernel {kernel.name}", plan.plugins()
    missing = sorted(state.features_of(kernel.name, kernel.features) - plugins.cpu.features)
    if missing:
        teller.line(skipped(part, f"this processor has no {', '.join(missing)}", FEATURES))
        return
    lookup = format_lookup(plugins)
    formats = [(one, lookup(one).activation) for one in state.native.formats if one not in BUILTIN]
    chosen = suite(kernel, formats)
    plain = plain_kernel(kernel.op, library_states(plugins), plugins.cpu)
    judge = plain[1] if plain is not None else None
    _compare_cases(kernel, part, chosen, teller, judge)
    _compare_sizes(plan, kernel, part, chosen, teller, judge)


def _compare_cases(kernel: Kernel, part: str, chosen: list[Case], teller: Teller, judge: Kernel | None) -> None:
    if not chosen:
        remedy = "look at accepts, fuses and handles; without accepted problems a kernel is never used"
        teller.line(failed(part, f"it accepts no case of {kernel.op}", remedy))
        return
    found = list(different(kernel, chosen, lambda case: teller.begin(f"kernel {kernel.name}, case {case}"), judge))
    if found:
        teller.line(failed(part, f"{len(found)} of {len(chosen)} cases differ; {found[0]}", UNEQUAL))
        return
    kinds = [("steps", sum(bool(case.problem.epilogues) for case in chosen))]
    kinds.append(("adapters", sum(case.adapters is not None for case in chosen)))
    with_ = ", ".join(f"{count} with {kind}" for kind, count in kinds if count)
    other = "the reference" if judge is None else f"the plain kernel {judge.name}"
    same = (
        f"equals {other} byte for byte"
        if kernel.numerics == "exact"
        else f"is within {kernel.bound:.2g} of the largest result of {other}"
    )
    same = f"is the plain kernel of {kernel.op} and repeats itself" if judge == kernel else same
    teller.line(ok(part, f"{same} in {len(chosen)} cases{f' ({with_})' if with_ else ''}"))


def _compare_sizes(
    plan: Plan, kernel: Kernel, part: str, chosen: list[Case], teller: Teller, judge: Kernel | None
) -> None:
    model = plan.model or "a Llama of 1.1B"
    accepted = 0
    found: list[str] = []
    for asked in _problems(plan, kernel, chosen):
        if not fits(kernel, asked):
            continue
        accepted += 1
        with contextlib.suppress(NoJudgeError):
            fields = {**problem_fields(asked), "workers": asked.workers}
            notice = partial(_notice, teller, kernel)
            found += different_at_size(kernel, asked, fields, notice, judge)
    if found:
        teller.line(failed(part, f"at the sizes of {model}: {found[0]}", UNEQUAL))
    elif accepted:
        rows = ", ".join(map(str, ROWS))
        text = f"so it does at the sizes of {model}: {accepted} problems, {rows} rows, on one thread and two"
        teller.line(ok(part, text))
    else:
        remedy = "name a model that has such problems: --model MODEL"
        teller.line(skipped(part, f"it accepts no problem of {model}", remedy))


def _notice(teller: Teller, kernel: Kernel, at: str) -> None:
    teller.begin(f"kernel {kernel.name}, {at}")


def _problems(plan: Plan, kernel: Kernel, chosen: list[Case]) -> Iterator[Problem]:
    """Yield what engines over a model ask of kernels of an op, in each format of weights and cache that it accepts.

    An op that a library describes has the widths of the model's rows.
    """
    if kernel.op not in OPS:
        yield from _of_widths(plan, kernel.op)
        return
    weights = dict.fromkeys(case.fields.get("weight") for case in chosen)
    caches = dict.fromkeys(case.fields.get("kv") for case in chosen)
    yield from asked_in_formats(plan, kernel.op, weights or (None,), caches or (None,))


def _of_widths(plan: Plan, op: str) -> Iterator[Problem]:
    plugins = plan.plugins()
    use_families(plugins)
    shape, _ = shape_and_formats(plan.model, plugins.config, format_lookup(plugins), plugins)
    for columns in sorted({shape.hidden, shape.intermediate} - {0}):
        for rows in row_ranges(max(ROWS)):
            yield Problem(op, rows=rows, n=columns, k=columns, workers=2)
