"""What this plugin adds: the scheduler ``fair``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import Limits, PolicyFactory, hookimpl


@hookimpl
def infeng_policies(settings: Mapping[str, Any]) -> dict[str, PolicyFactory]:
    """Return the policy; its settings are read when it is used."""

    def fair(limits: Limits) -> Any:
        from infeng_fair.policy import Fair
        from infeng_fair.terms import Terms

        return Fair(Terms.read(settings), limits)

    return {"fair": fair}
