"""An observer: it is told of an engine's whole life, raises nothing and changes no token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from infeng_core.api import Engine
from infeng_core.api.engines import Observer
from infeng_core.api.inspection import HOOKS
from infeng_kit.checks.engine import cancel_one, tokens
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan

OBSERVERS = next(hook for hook in HOOKS if hook.kind == "observers")


CALLS = frozenset(name for name in vars(Observer) if not name.startswith("_"))


class Watched(Observer):
    """Passes every call of an engine on and keeps the errors, which an engine would only log."""

    def __init__(self, observer: Any) -> None:
        """Pass calls on to ``observer``."""
        self.observer = observer
        self.errors: list[str] = []
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        """Return the call to be passed on, for the methods of an observer."""
        return partial(self.pass_on, name) if name in CALLS else super().__getattribute__(name)

    def pass_on(self, name: str, *given: Any) -> None:
        """Make one call."""
        self.called.append(name)
        try:
            getattr(self.observer, name)(*given)
        except Exception as error:
            self.errors.append(f"{name}() raised {type(error).__name__}: {error}")


def check(plan: Plan, name: str, teller: Teller) -> None:
    """Report what the observer raised, and whether an engine that has it gives the same tokens."""
    part, plugins = f"observer {name}", plan.plugins()
    teller.begin(f"the calls to observer {name}")
    watched = Watched(plugins.get(OBSERVERS, name)(plugins.config))
    with Engine(plan.tiny(), overrides=plan.settings()) as engine:
        wanted = tokens(engine)
        with engine.observe(watched):
            found = tokens(engine)
            cancel_one(engine)
    watched.close()
    if watched.errors:
        remedy = "repair the method; an engine calls an observer no more after its first error"
        teller.line(failed(part, watched.errors[0], remedy))
    else:
        kinds = len(set(watched.called))
        teller.line(ok(part, f"bore {len(watched.called)} calls of {kinds} kinds, a cancelled request among them"))
    teller.begin(f"an engine with observer {name}")
    with Engine(plan.tiny(), overrides=plan.settings(observers__use=[name])) as engine:
        again = tokens(engine)
    if wanted == found == again:
        teller.line(ok(part, "an engine that has it gives the same tokens"))
    else:
        teller.line(failed(part, "an engine that has it gives other tokens", "an observer only reads"))
