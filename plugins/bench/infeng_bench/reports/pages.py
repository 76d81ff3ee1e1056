"""Pages of results, which the verb `report` of another wheel draws."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from infeng_bench.hookspecs import OF_WHEELS, infeng_bench_verbs
from infeng_core.api import Plugins, UsageError, load_config

VERB = "report"


class Pages(Protocol):
    """The module of the verb."""

    def page(self, found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Return the HTML of results, each with its name."""


def pages() -> Pages:
    """Return the module of the verb; raises UsageError if no plugin brings one that draws pages."""
    for verbs in Plugins.discover(load_config()).answers(infeng_bench_verbs).values():
        module: Any = importlib.import_module(verbs[VERB].module) if VERB in verbs else None
        if hasattr(module, "page"):
            return module  # type: ignore[no-any-return]
    raise UsageError("--report", "no plugin draws pages", f"install the wheel {OF_WHEELS[VERB]}")
