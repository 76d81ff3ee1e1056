"""A logit processor: it answers in an engine, changes nobody else's tokens, and bears guesses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from infeng_core.api import Engine, Request, RequestError, SamplingParams
from infeng_kit.report import failed, ok, skipped

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

PLAIN = SamplingParams(temperature=0.0, max_tokens=24)


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report whether requests with the processor end, alike with guesses, and leave their neighbours unchanged."""
    part = f"processor {name}"
    argument = plan.options.get("logit_processors", {}).get(name)
    params = replace(PLAIN, processors=((name, argument),))
    teller.begin(f"an engine with processor {name}")
    try:
        alone, beside, neighbour = _answers(plan, params)
    except RequestError as error:
        remedy = f"give one: [tool.infeng-kit.logit_processors] {name} = ... in pyproject.toml"
        state = skipped if argument is None else failed
        teller.line(state(part, f"it takes no argument {argument!r}: {error}", remedy))
        return
    if neighbour[0] != neighbour[1]:
        teller.line(failed(part, "another request of the batch got other tokens", "keep the state of each request"))
    elif alone != beside:
        why = "a request gets other tokens in a batch than alone"
        teller.line(failed(part, why, "let row() depend on the argument, the prompt and the tokens only"))
    else:
        teller.line(ok(part, f"answers with {argument!r}; a neighbour's tokens are unchanged"))
    teller.begin(f"guesses under processor {name}")
    guessed, *_ = _answers(plan, params, speculation__use="ngram")
    if guessed == alone:
        teller.line(ok(part, "speculation changes no token"))
    else:
        remedy = "leave the state unchanged in row(guesses); only extend() may change it"
        teller.line(failed(part, "with speculation a request gets other tokens", remedy))


def _answers(plan: Plan, params: SamplingParams, **more: Any) -> tuple[Any, Any, tuple[Any, Any]]:
    """Return the tokens of a request alone and in a batch, and a neighbour's without and with it."""
    prompt, other = [5, 6, 7, 5, 6, 7], [9, 10, 11]
    with Engine(plan.tiny(), overrides=plan.settings(**more)) as engine:
        alone = engine.generate([prompt], params)[0].token_ids
        plain = engine.generate([other], PLAIN)[0].token_ids
        both = engine.generate([Request(tuple(prompt), params), Request(tuple(other), PLAIN)])
    return alone, both[0].token_ids, (plain, both[1].token_ids)
