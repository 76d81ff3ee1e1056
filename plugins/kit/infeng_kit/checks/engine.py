"""The plugin's kernels in an engine: bound to a model's ops, with the tokens of the reference, cancelled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infeng_core.api import Engine, SamplingParams
from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

PROMPTS = ([5, 6, 7], list(range(9, 60)), [100])
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def check(plan: Plan, format: str, teller: Teller) -> None:
    """Report what kernels serve in an engine over a tiny model; ``format``: of its weights, "" for the default."""
    more = {"model__format": format, "model__formats": {}} if format else {}
    model = plan.tiny()
    teller.begin("an engine with the reference kernels")
    with Engine(model, overrides={**plan.settings(**more), "kernels.disable": _all_kernels(plan)}) as engine:
        wanted = tokens(engine)
    teller.begin("an engine with the kernels of the plugin")
    with Engine(model, overrides=plan.settings(**more)) as engine:
        bound = [f"{one.kernel} ({one.op})" for one in engine.bound() if one.library == plan.plugin]
        faults = _faults(engine, plan.plugin)
        found = tokens(engine)
        teller.begin("a request that is cancelled")
        cancel_one(engine)
        after = tokens(engine)
    why = f"infeng plugins why OP --set kernels.order={plan.plugin},*,reference shows the reasons"
    if faults:
        teller.line(failed("engine", f"it does not use {faults[0]}", why))
        return
    if not bound:
        teller.line(skipped("engine", "no op of the tiny model asks for these kernels", why))
        return
    if found != wanted:
        teller.line(failed("engine", "its tokens differ from those with the reference kernels", "look at the kernels"))
    elif after != wanted:
        teller.line(failed("engine", "after a cancelled request its tokens differ", "keep no state between calls"))
    else:
        counts = {name: bound.count(name) for name in dict.fromkeys(bound)}
        uses = ", ".join(f"{name} in {count} places" for name, count in counts.items())
        teller.line(ok("engine", f"uses {uses}; tokens are the reference's, also after a cancelled request"))


def _faults(engine: Engine, library: str) -> list[str]:
    """Return the kernels that the engine's own check refused, each with the reason."""
    decisions = engine.selector.decisions if engine.selector is not None else ()
    tried = [one for decision in decisions for one in decision.candidates if one.library == library]
    return [f"{one.kernel}: {one.reason}" for one in tried if one.reason.is_fault]


def tokens(engine: Engine) -> list[tuple[int, ...]]:
    """Return the tokens after a few prompts in one batch."""
    return [answer.token_ids for answer in engine.generate([list(prompt) for prompt in PROMPTS], GREEDY)]


def cancel_one(engine: Engine) -> None:
    """Begin a batch, and cancel it after its first token."""
    stream: Any = engine.stream([list(prompt) for prompt in PROMPTS], GREEDY)
    next(iter(stream))
    stream.close()


def _all_kernels(plan: Plan) -> list[str]:
    from infeng_kit.checks.library import own_states

    states = [state for state in own_states(plan) if state.native is not None]
    return [
        f"{state.name}/{kernel.name}" for state in states for kernel in (state.native.kernels if state.native else ())
    ]
