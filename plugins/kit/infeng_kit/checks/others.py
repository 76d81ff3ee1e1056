"""Parts of kinds without a check of their own: the engine gets them from the plugin, or says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infeng_core.api import PluginError
from infeng_core.api.inspection import HOOKS
from infeng_kit.report import failed, ok

if TYPE_CHECKING:
    from infeng_kit.child import Teller
    from infeng_kit.plan import Plan


def check(plan: Plan, argument: str, teller: Teller) -> None:
    """Report whether the part KIND/NAME is brought; its behaviour is for the tests of the plugin."""
    kind, _, name = argument.partition("/")
    hook = next(hook for hook in HOOKS if hook.kind == kind)
    part = f"{hook.singular} {name}"
    teller.begin(f"the hook {hook.name}")
    try:
        plan.plugins().get(hook, name)
    except PluginError as error:
        teller.line(failed(part, error.why, f"let {hook.name} return it"))
    else:
        teller.line(ok(part, "the plugin brings it; its own tests say what it does"))
