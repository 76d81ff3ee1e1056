"""The hook of this plugin: routes of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infeng_serve.api import Route

from infeng_core.api import UsageError, hookimpl
from infeng_dialects import anthropic, llamacpp, ollama, ranking

DIALECTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Route]]] = {
    "anthropic": anthropic.routes,
    "ollama": ollama.routes,
    "llamacpp": llamacpp.routes,
    "ranking": ranking.routes,
}


@hookimpl(optionalhook=True)
def infeng_serve_routes(settings: Mapping[str, Any]) -> dict[str, Route]:
    """Return the routes of the dialects that the settings name."""
    found: dict[str, Route] = {}
    for name in settings["use"]:
        if name not in DIALECTS:
            raise UsageError("dialects.use", f"{name!r} is no dialect", f"name some of {', '.join(DIALECTS)}")
        found |= DIALECTS[name](settings)
    return found
