"""A backend: an engine over it answers, alike alone and in a batch, again and after a cancelled request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import Engine
from infeng_kit.checks.engine import GREEDY, PROMPTS, cancel_one, tokens
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report whether the tokens of requests depend on anything but their prompts."""
    part = f"backend {name}"
    teller.begin(f"an engine over backend {name}")
    with Engine(plan.tiny(), overrides=plan.settings(backend__use=name)) as engine:
        batch = tokens(engine)
        alone = [engine.generate([list(prompt)], GREEDY)[0].token_ids for prompt in PROMPTS]
        teller.begin("a request that is cancelled")
        cancel_one(engine)
        after = tokens(engine)
        scores = engine.score(list(PROMPTS[0]), list(batch[0]))
        ops = len(engine.bound())
    if batch != alone:
        teller.line(
            failed(part, "a request gets other tokens in a batch than alone", "let a row depend on its own only")
        )
    elif batch != after:
        remedy = "a cancelled request's blocks are used again: read none that a request has not written"
        teller.line(failed(part, "after a cancelled request the tokens differ", remedy))
    elif not all(one.logprob <= 0 for one in scores):
        teller.line(failed(part, "its logits give probabilities above 1", "return finite float32 logits"))
    else:
        text = f"{ops} ops; tokens are the same alone, in a batch, and after a cancelled request"
        teller.line(ok(part, text))
