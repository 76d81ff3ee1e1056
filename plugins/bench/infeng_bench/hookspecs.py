"""Hooks of `infeng bench` that other plugins implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from infeng_core.api import hookspec


class BenchVerb(NamedTuple):
    """A verb of `infeng bench`."""

    help: str
    module: str  # has ``configure(parser)`` and ``run(arguments)``; imported when the verb's arguments are parsed


OF_WHEELS = dict.fromkeys(("simulate", "hybrid"), "infeng-simulate")
"""Verbs that other wheels of the project bring, so that an error names the one to install."""


@hookspec
def infeng_bench_verbs(settings: Mapping[str, Any]) -> dict[str, BenchVerb]:  # type: ignore[empty-body]
    """Return further verbs by name: `infeng bench NAME`."""
