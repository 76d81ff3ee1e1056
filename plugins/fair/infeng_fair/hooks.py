"""Hook of this plugin: the scheduler ``fair``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import PolicyFactory, hookimpl
from infeng_core.api.engines import Limits


@hookimpl
def infeng_policies(settings: Mapping[str, Any]) -> dict[str, PolicyFactory]:
    """Return the policy's factory; it reads the settings when an engine uses the policy."""

    def fair(limits: Limits) -> Any:
        from infeng_fair.policy import Fair
        from infeng_fair.shares import Terms

        return Fair(Terms.read(settings), limits)

    return {"fair": fair}
