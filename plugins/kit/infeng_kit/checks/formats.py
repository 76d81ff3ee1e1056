"""A weight format: what is packed comes back, an engine runs in it, and NumPy computes the same from its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from infeng_core.api import Engine, InfengError, SamplingParams
from infeng_core.api.formats import format_lookup
from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

SIZES = ((40, 100), (16, 64), (1, 8), (33, 576))
"""Outputs and inputs of matrices: whole panels and groups, and not."""
WORST = 0.5
"""Of the magnitude of a row: an error beyond it says that values are misplaced, not rounded."""
NEAR = 0.05
"""Difference of the log-probabilities by two backends that round in other orders."""


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report the round trip of matrices, and the runs of an engine."""
    part = f"format {name}"
    form = format_lookup(plan.plugins())(name)
    faults, worst = [], 0.0
    for n, k in SIZES:
        teller.begin(f"packing {n} x {k} as {name}")
        fault, error = _round_trip(form, n, k)
        faults += [fault] if fault else []
        worst = max(worst, error)
    for fault in faults[:3]:
        teller.line(failed(part, fault, "compare pack and unpack; docs/format.md says what a panel holds"))
    if not faults:
        teller.line(ok(part, f"{len(SIZES)} matrices come back, within {worst:.1%} of the largest weight of a row"))
    _in_engines(plan, name, part, teller)


def _round_trip(form: Any, n: int, k: int) -> tuple[str, float]:
    """Return what is wrong with a packed matrix, "" if nothing is, and the largest error of a row by its magnitude."""
    weights = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    weights[n // 2] = 0
    panels = -(-n // 16)
    packed = np.zeros(panels * form.panel_bytes(k), np.uint8)
    form.pack(weights, packed)
    again = np.full_like(packed, 255)
    form.pack(weights, again)
    if packed.tobytes() != again.tobytes():
        return f"{n} x {k}: pack() leaves bytes of a panel as they were", 0.0
    values = form.unpack(packed, 0, panels, k)
    if values[n:].any():
        return f"{n} x {k}: rows that pad the last panel are not zero", 0.0
    most = np.maximum(np.abs(weights).max(axis=1, keepdims=True), 1e-9)
    error = float((np.abs(values[:n] - weights) / most).max())
    row, column = map(int, np.argwhere(np.abs(values[:n] - weights) / most == error)[0])
    if error > WORST:
        found = f"{values[row, column]:.3g} instead of {weights[row, column]:.3g}"
        return f"{n} x {k}: row {row}, column {column} comes back as {found}", error
    return "", error


def _in_engines(plan: Plan, name: str, part: str, teller: Teller) -> None:
    model = {"model__format": name, "model__formats": {}}
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompt = [5, 6, 7, 8]
    teller.begin(f"an engine in {name}")
    with Engine(plan.tiny(), overrides=plan.settings(**model)) as engine:
        answer = engine.generate([prompt], params)[0].token_ids
        scores = [one.logprob for one in engine.score(prompt, answer)]
    with Engine(plan.tiny(), overrides=plan.settings(**model, model__quantizer="nearest")) as engine:
        same = engine.generate([prompt], params)[0].token_ids
    if answer == same:
        teller.line(ok(part, "an engine runs in it, and the quantizer `nearest` makes the same model"))
    else:
        teller.line(
            failed(part, "the quantizer `nearest` makes another model", "round in pack() as docs/format.md has it")
        )
    teller.begin(f"the backend numpy in {name}")
    try:
        with Engine(plan.tiny(), overrides=plan.settings(**model, backend__use="numpy")) as engine:
            twin = [one.logprob for one in engine.score(prompt, answer)]
    except InfengError as error:
        teller.line(skipped(part, f"the backend numpy does not run it: {error}", "pip install infeng-numpy"))
        return
    apart = max(abs(one - other) for one, other in zip(scores, twin, strict=True))
    if apart <= NEAR:
        teller.line(ok(part, f"the backend numpy agrees: log-probabilities differ by {apart:.2g} at most"))
    else:
        remedy = "compare unpack with the kernel: both read the same bytes"
        teller.line(failed(part, f"log-probabilities differ by {apart:.2g} from the backend numpy", remedy))
