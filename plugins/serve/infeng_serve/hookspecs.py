"""Hooks of the server that other plugins implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infeng_core.api import Plugins, UsageError, hookspec
from infeng_serve.app import Route


@hookspec
def infeng_serve_routes(settings: Mapping[str, Any]) -> dict[str, Route]:  # type: ignore[empty-body]
    """Return routes by path; a path that ends with / matches every path that begins with it."""


def routes_of(plugins: Plugins, own: Mapping[str, Route]) -> dict[str, Route]:
    """Return the routes of plugins; raises UsageError for a path that the server or another plugin has already.

    own: the server's routes.
    """
    found: dict[str, Route] = {}
    owners = dict.fromkeys(own, "the server")
    for name, routes in plugins.answers(infeng_serve_routes).items():
        for path, route in routes.items():
            if not path.startswith("/"):
                raise UsageError(
                    f"plugin {name}", f"its route {path!r} begins with no /", "ask its author for a repair"
                )
            if path in owners:
                why = f"its route {path} is one of {owners[path]} already"
                raise UsageError(f"plugin {name}", why, f"add {name} to plugins.disable")
            found[path], owners[path] = route, f"plugin {name}"
    return found
